"""Examples, the worlds in which they run, and the verdict that is expected: the same, or a cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A script; `named` is in the cause of every difference, and empty where there must be none."""

    name: str
    script: str
    options: tuple[str, ...]
    named: str = ""
    arguments: tuple[str, ...] = ()


DEVICES = ("--worlds", "1x1,1x4", "--steps", "6")
PROCESSES = ("--worlds", "1x1,1x2,2x1", "--steps", "6")
ACCUMULATED = ("--worlds", "1x1,1x4", "--accumulate", "1,2", "--steps", "5")
STATISTICS, DRAWS = "BatchNorm normalises by the rows of each", "random draws in the step"


def own(name: str, options: tuple[str, ...], named: str = "", *arguments: str) -> Example:
    return Example(f"examples/{name}", f"examples/{name}", options, named, arguments)


def from_jax(name: str, named: str = "", *arguments: str) -> Example:
    script = "benchmarks/invariance/from_jax.py"
    return Example(f"examples/from_jax/{name}.py", script, DEVICES, named, (name, *arguments))


EXAMPLES = [
    own("04_distributed.py", PROCESSES, STATISTICS),
    own("07_digits_cnn.py", DEVICES, f"{STATISTICS}|{DRAWS}"),
    own("08_accumulation.py", ACCUMULATED),
    own("10_inner_block.py", ACCUMULATED),
    own("11_language_model.py", ACCUMULATED),
    own("12_gpt.py", ACCUMULATED, "", "--steps", "8", "--float64"),
    own("13_dcgan.py", DEVICES, STATISTICS),
    own("14_dqn.py", DEVICES),
    from_jax("equinox_digits"),
    from_jax("haiku_digits"),
    from_jax("hijax_basic"),
    from_jax("linear_regression"),
    from_jax("lm1b", "", "--no-dropout"),
    from_jax("lm1b", DRAWS),
    from_jax("mnist", "", "--no-dropout"),
    from_jax("mnist", DRAWS),
    from_jax("mnist_linen"),
    from_jax("seq2seq"),
    from_jax("toy_train_state"),
    from_jax("vae"),
]
