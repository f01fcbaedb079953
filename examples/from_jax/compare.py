"""Each script of this folder beside the program that it was: numbers, and how many lines differ.

    python examples/from_jax/compare.py          # the table of README.md
    python examples/from_jax/compare.py mnist

`<name>_plain.py` is a JAX program as its authors write it, `<name>.py` the same program in jaxpar. Both
train some steps, in float64 and in float32, with dropout off, because its masks come from another stream on
each replica. A difference is relative: of a loss to that loss, of a parameter to the largest of its array.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
BOUNDS = {"float64": 1e-10, "float32": 1e-6}
Numbers = tuple[list[float], list[np.ndarray]]


class Difference(NamedTuple):
    loss: float
    params: float


def names() -> list[str]:
    return sorted(path.stem.removesuffix("_plain") for path in HERE.glob("*_plain.py"))


def code(path: Path) -> list[str]:
    """A script's lines, without its docstring and empty lines."""
    return [line for line in path.read_text().split('"""', 2)[2].splitlines() if line.strip()]


def changed_lines(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines are changed or new, and how many are gone."""
    changed = gone = 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            changed, gone = changed + d - c, gone + max(0, b - a - (d - c))
    return changed, gone


def lines_of(name: str) -> tuple[int, int]:
    return changed_lines(code(HERE / f"{name}_plain.py"), code(HERE / f"{name}.py"))


def trainer(script: str) -> Any:
    """The script's `train`, with dropout off."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    train = importlib.import_module(script).train
    options = {"dropout": 0.0} if "dropout" in inspect.signature(train).parameters else {}
    return lambda dtype: train(dtype, **options)


def numbers(train: Any, dtype: str, steps: int) -> Numbers:
    """The losses of the first steps, and the parameters after them."""
    losses, net = [], None
    for loss, net in itertools.islice(train(dtype), steps):  # noqa: B007
        losses.append(float(loss))  # now: the next step takes over the arrays
    return losses, arrays(net)


def arrays(net: Any) -> list[np.ndarray]:
    """The parameters of a module, or the arrays of a tree."""
    import jax
    from flax import nnx

    tree = nnx.state(net, nnx.Param) if isinstance(net, nnx.Module) else net
    return [np.array(x) for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]


def relative(a: Any, b: Any) -> float:
    """The largest difference, relative to the largest element of b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, f"{a.shape} is not {b.shape}"
    return float(np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(np.float64).tiny))


def compare(name: str, dtype: str, steps: int = 6) -> Difference:
    """How far the form in jaxpar is from the plain program.

    Where they differ in float32, it may be the plain program that has lost digits: then the plain program in
    float64 is what the form in jaxpar is compared with, if it is nearer to that.
    """
    plain, ported = (numbers(trainer(script), dtype, steps) for script in (f"{name}_plain", name))
    for _, params in (plain, ported):
        assert params[0].dtype == np.dtype(dtype), f"{name} does not train in {dtype}"
    assert len(plain[1]) == len(ported[1])
    difference = largest(ported, plain)
    if dtype == "float64" or max(difference) <= BOUNDS[dtype]:
        return difference
    exact = largest(ported, numbers(trainer(f"{name}_plain"), "float64", steps))
    return min(difference, exact, key=max)


def rounding(name: str, dtype: str, steps: int = 6) -> Difference:
    """How far the plain program is from itself when XLA compiles it without most optimisations.

    Where digits cancel, as in the first gradients of a batch norm, two right programs differ by that.
    """
    import jax

    setting = "jax_disable_most_optimizations"
    before, runs = jax.config.read(setting), []
    try:
        for off in (True, False):
            jax.clear_caches()
            jax.config.update(setting, off)
            runs.append(numbers(trainer(f"{name}_plain"), dtype, steps))
    finally:
        jax.config.update(setting, before)
        jax.clear_caches()
    return largest(*runs)


def largest(a: Numbers, b: Numbers) -> Difference:
    """The largest difference of a's losses from b's, and of its parameters."""
    losses, params = (max(map(relative, *both), default=0.0) for both in zip(a, b, strict=True))
    return Difference(losses, params)


def row(name: str) -> str:
    changed, gone = lines_of(name)
    cells = [f"[{name}.py]({name}.py)", f"[{name}_plain.py]({name}_plain.py)", str(changed), str(gone)]
    cells += [f"{max(compare(name, dtype)):.0e}" for dtype in BOUNDS]
    return f"| {' | '.join(cells)} |"


def main(chosen: list[str]) -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    print(
        "| in jaxpar | in plain JAX | lines changed or new | gone | float64 | float32 |\n" + "|---" * 6 + "|"
    )
    for name in chosen or names():
        print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
