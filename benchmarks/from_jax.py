"""examples/from_jax: numbers, lines and step times beside the programs in plain JAX, and a draw of programs.

    python benchmarks/from_jax.py --out docs/tables/from_jax.md
    python benchmarks/from_jax.py --small --only lm1b
    python benchmarks/from_jax.py --only haiku_vae --keep --out docs/tables/from_jax.md

A step is timed in one process on four virtual devices, the programs in turn, some steps each; a time is the
median of the rounds. An original for one device is timed twice: as it is, and with its batches divided over
the devices by a NamedSharding, which is what JAX's guides make of it.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "examples" / "from_jax"
sys.path[:0] = [str(ROOT), str(SCRIPTS)]

SEED = 30


class Draw(NamedTuple):
    """Some programs of a frame, which the seed draws from those that were not chosen before."""

    libraries: str
    what: str
    frame: tuple[str, ...]
    chosen: tuple[str, ...]
    converted: dict[str, str]
    left_out: dict[str, str]
    seed: int = SEED

    def names(self) -> list[str]:
        rest = sorted(set(self.frame) - set(self.chosen))
        return random.Random(self.seed).sample(rest, len(self.converted) + len(self.left_out))


FLAX = Draw(
    "Flax's",
    "the training programs in `examples/` of google/flax at commit 18f8f311c275d57f46d95e41b15aa97b454754c0: "
    "folders with a training loop, and files that take a gradient",
    (
        *("gemma", "imagenet", "linen_design_test/linear_regression", "lm1b", "mnist", "nlp_seq"),
        *(
            f"nnx_toy_examples/{name}"
            for name in ("01_functional_api", "02_lifted_transforms", "03_train_state")
        ),
        *(f"nnx_toy_examples/{name}" for name in ("04_data_parallel_with_jit", "05_vae", "07_array_leaves")),
        *(f"nnx_toy_examples/{name}" for name in ("10_fsdp_and_optimizer", "hijax_basic", "hijax_demo")),
        *("ogbg_molpcba", "ppo", "seq2seq", "sst2", "vae", "wmt"),
    ),
    chosen=("gemma", "imagenet", "lm1b", "mnist", "ppo", "seq2seq", "sst2", "vae"),
    converted={
        "nnx_toy_examples/10_fsdp_and_optimizer": "toy_mesh",
        "nnx_toy_examples/03_train_state": "toy_train_state",
        "nnx_toy_examples/hijax_basic": "hijax_basic",
        "linen_design_test/linear_regression": "linear_regression",
        "nnx_toy_examples/02_lifted_transforms": "toy_cached",
    },
    left_out={},
)
"""Chosen were those that had been converted, or left out, before anything was drawn."""

OTHERS = Draw(
    "Optax's, Haiku's and Equinox's",
    "the programs with a training loop in the examples of google-deepmind/optax at commit 2edbcbe2, "
    "google-deepmind/dm-haiku at f4d858a and patrick-kidger/equinox at 9336d82",
    (
        *("optax/adversarial_training", "optax/cifar10_resnet", "optax/contrib/differentially_private_sgd"),
        *("optax/contrib/reduce_on_plateau", "optax/contrib/sam", "optax/flax_example"),
        *("optax/freezing_parameters", "optax/gradient_accumulation"),
        *("optax/gradient_accumulation_and_microbatching", "optax/lookahead_mnist", "optax/meta_learning"),
        *("optax/mlp_mnist", "optax/nanolm"),
        *(f"haiku/{name}" for name in ("haiku_lstms", "imagenet", "impala_lite", "mnist", "mnist_gan")),
        *(f"haiku/{name}" for name in ("mnist_pruning", "rnn", "transformer", "vae", "vqvae_example")),
        *(f"equinox/{name}" for name in ("bert", "deep_convolutional_gan", "frozen_layer", "mnist")),
        *(f"equinox/{name}" for name in ("parallelism", "score_based_diffusion", "stateful", "train_rnn")),
        *("equinox/unet", "equinox/vision_transformer"),
    ),
    chosen=(),
    converted={
        "haiku/vae": "haiku_vae",
        "equinox/deep_convolutional_gan": "equinox_gan",
        "haiku/vqvae_example": "haiku_vqvae",
        "optax/adversarial_training": "adversarial",
        "equinox/stateful": "equinox_state",
        "optax/mlp_mnist": "mlp_mnist",
    },
    left_out={
        "optax/freezing_parameters": "nothing to share out: two numbers, and no data",
        "equinox/unet": "not yet converted",
    },
)

ALL = Draw(
    "all five libraries'",
    "those of both frames above, and the programs in `examples/` of jax-ml/jax that take a gradient",
    (
        *(f"flax/{name}" for name in FLAX.frame),
        *OTHERS.frame,
        *(f"jax/{name}" for name in ("advi", "differentially_private_sgd", "gaussian_process_regression")),
        *(f"jax/{name}" for name in ("kernel_lsq", "mnist_classifier", "mnist_classifier_fromscratch")),
        *("jax/mnist_vae", "jax/spmd_mnist_classifier_fromscratch"),
    ),
    chosen=(
        *(f"flax/{name}" for name in (*FLAX.chosen, *FLAX.converted)),
        *OTHERS.converted,
        *("optax/freezing_parameters", "jax/spmd_mnist_classifier_fromscratch"),
    ),
    converted={
        "optax/contrib/differentially_private_sgd": "dpsgd",
        "jax/mnist_classifier_fromscratch": "fromscratch",
        "haiku/mnist_pruning": "haiku_pruning",
        "optax/flax_example": "optax_flax",
        "jax/advi": "advi",
        "jax/mnist_vae": "stax_vae",
        "equinox/frozen_layer": "frozen_layer",
    },
    left_out={"optax/contrib/sam": "nothing to share out: two numbers, and no data"},
    seed=81,
)
"""Drawn when the others had been converted."""

DRAWS = (FLAX, OTHERS, ALL)


# ------------------------------------------------------------------------------------------------- time

Steps = Generator[tuple[Any, Any], None, None]


def one_device(script: str) -> bool:
    """Whether the original takes batches, and leaves their devices to JAX."""
    text = (SCRIPTS / f"{script}_plain.py").read_text()
    return "in batches(" in text and not re.search("device_count|NamedSharding", text)


def sharded(script: str) -> Steps:
    """The original's steps, with batches that lie on all devices."""
    import jax

    module = importlib.import_module(f"{script}_plain")
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (jax.sharding.AxisType.Auto,))
    rows, batches = jax.NamedSharding(mesh, jax.P("data")), module.batches

    def on_all_devices(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return (jax.device_put(batch, rows) for batch in batches(*args, **kwargs))

    module.batches = on_all_devices
    steps = module.train()
    next(steps)
    module.batches = batches
    return steps


def as_it_is(script: str) -> Steps:
    return importlib.import_module(script).train()


def seconds(steps: Steps, count: int) -> float:
    """Of one step, when `count` have been started and the last is done."""
    import jax

    begun = time.perf_counter()
    for _ in range(count):
        loss, _ = next(steps)
    jax.block_until_ready(loss)
    return (time.perf_counter() - begun) / count


def step_times(script: str, rounds: int, count: int) -> dict[str, float]:
    """Milliseconds of a step, for each side."""
    makers: dict[str, Callable[[], Steps]] = {"jaxpar": lambda: as_it_is(script)}
    makers["original"] = lambda: as_it_is(f"{script}_plain")
    if one_device(script):
        makers["sharded"] = lambda: sharded(script)
    sides = {name: make() for name, make in makers.items()}
    for steps in sides.values():
        seconds(steps, 3)
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(1e3 * seconds(sides[name], count))
    for steps in reversed(sides.values()):
        steps.close()  # which leaves its mesh; the last that entered one comes first
    return {name: statistics.median(each) for name, each in times.items()}


# ------------------------------------------------------------------------------------------------- page


def measured(script: str) -> list[str]:
    """Lines changed, lines gone, and the differences, from the table that `compare.py` prints."""
    (row,) = re.findall(rf"^\| \[{script}\.py\].*$", (SCRIPTS / "README.md").read_text(), re.M)
    return [cell.strip() for cell in row.strip("|").split("|")][2:]


def row_of(script: str, rounds: int, count: int) -> list[str]:
    times = step_times(script, rounds, count)
    beside = times.get("sharded", times["original"])
    return [
        *(script, *measured(script), f"{times['jaxpar']:.2f}", f"{times['original']:.2f}"),
        f"{times['sharded']:.2f}" if "sharded" in times else "",
        f"{times['jaxpar'] / beside:.2f}",
    ]


HEADS = (
    *("program", "lines", "gone", "float64", "float32", "jaxpar, ms", "original, ms"),
    *("original, sharded, ms", "ratio"),
)


def table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)) + "\n"


def page(rows: dict[str, list[str]]) -> str:
    from compare import BOUNDS

    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "optax"))
    bounds = tuple(BOUNDS.values())
    same = [all(float(x) <= bound for x, bound in zip(c[3:5], bounds, strict=True)) for c in rows.values()]
    quick = [float(cells[-1]) <= 1.05 for cells in rows.values()]
    bars = [
        ["the same numbers, at 1e-10 in float64 and 1e-6 in float32", "all", f"{sum(same)} of {len(rows)}"],
        ["a step takes at most 1.05 of the original's", "all", f"{sum(quick)} of {len(rows)}"],
        *(
            [
                f"drawn from {draw.libraries} examples (seed {draw.seed}), converted",
                *("all", f"{len(draw.converted)} of {len(draw.names())}"),
            ]
            for draw in DRAWS
        ),
        ["a step beside the original's, median of the programs", "1.05", median_ratio(rows)],
    ]
    return PAGE.format(
        packages=packages,
        python=platform.python_version(),
        machine=platform.machine(),
        bars=table(("", "bar", "is"), bars),
        programs=table(HEADS, list(rows.values())),
        draws="\n".join(section(draw, rows) for draw in DRAWS),
    )


def section(draw: Draw, rows: dict[str, list[str]]) -> str:
    """The frame, and a row for each program that was drawn from it."""
    drawn = []
    for i, program in enumerate(draw.names(), 1):
        script = draw.converted.get(program, "")
        done = rows.get(script)
        cells = done[1:5] + done[8:] if done else [*(measured(script) if script else [""] * 4), ""]
        drawn.append([str(i), program, script or draw.left_out[program], *cells])
    return SECTION.format(
        libraries=draw.libraries,
        what=draw.what,
        frame=listed(draw.frame),
        chosen=f"Chosen before were {listed(draw.chosen)}. From the others" if draw.chosen else "From these",
        seed=draw.seed,
        drawn=table(
            ("draw", "program", "converted as", "lines", "gone", "float64", "float32", "ratio"), drawn
        ),
    )


def listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def median_ratio(rows: dict[str, list[str]]) -> str:
    return f"{statistics.median(float(cells[-1]) for cells in rows.values()):.2f}"


PAGE = """# Programs of JAX users

Each program of [examples/from_jax](../from_jax.md#whole-programs) beside its original in plain JAX. This page
is printed by

    python benchmarks/from_jax.py --out docs/tables/from_jax.md

{packages}; Python {python} on {machine}, four virtual devices on two cores that others used, too.

*lines* are changed or new, *gone* are lines that nothing replaces. *float64* and *float32* are the largest
relative difference of a loss or a parameter in six steps, as `compare.py` there prints them. Times are of one
step, medians of interleaved rounds in one process. The *ratio* is beside the original with its batches
divided over the devices by a NamedSharding, or as it is if it divides them itself or has none. As it is, an
original for one device uses both cores of this machine without any exchange. A program
without a ratio has not been timed. The second draw was timed in five rounds, on a machine under heavier load.

## In short

{bars}
## The programs

{programs}
{draws}"""

SECTION = """## Drawn from {libraries} examples

The frame are {what}:
{frame}.

{chosen}, sorted, `random.Random({seed}).sample` drew:

{drawn}"""


def measured_before(path: Path) -> dict[str, list[str]]:
    """The rows of a page that was printed before."""
    lines = re.findall(r"^\| (\w+) \|((?:[^|\n]*\|){8})$", path.read_text(), re.M)
    rows = {script: [script, *(cell.strip() for cell in cells.split("|")[:-1])] for script, cells in lines}
    return {script: cells for script, cells in rows.items() if script != "program"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="these programs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="steps of a side in a round")
    parser.add_argument("--small", action="store_true", help="one round of one step")
    parser.add_argument("--out", help="the page; printed if left out")
    parser.add_argument(
        "--keep", action="store_true", help="the rows that the page has and nothing measures now"
    )
    options = parser.parse_args()
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    from compare import names

    rounds, count = (1, 1) if options.small else (options.rounds, options.steps)
    rows = measured_before(Path(options.out)) if options.keep else {}
    for script in options.only or names():
        rows[script] = row_of(script, rounds, count)
        print(" ".join(rows[script]), file=sys.stderr, flush=True)
        if options.out:
            Path(options.out).write_text(page(dict(sorted(rows.items()))))
    if not options.out:
        print(page(rows))


if __name__ == "__main__":
    main()
