"""Write the smallest program that shows a difference: the code of a place on torch's recorded arrays.

It does not need torch, nor jaxpar unless the port does. Statements are left out, and axes shortened, as long
as the port still differs and the mended port still agrees.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._comparison_data import Divergence
from .._divergence.array_changes import EQUAL
from .._exactness import exact
from .plain_run import Arrived, PlainRun, is_forward

SECONDS = 20.0  # for making it smaller
HEAD = '''"""{sentence}

python {name} [PORT]: ends with 1 while the code below, or the file PORT, differs from torch, and with 0
once it agrees. torch's arrays are in {arrays}, next to this file.
"""

import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

jax.config.update("jax_enable_x64", True)

# -------------------------------------------------------------------- the port's code, as far as it is needed

'''
MIDDLE = """
# ---------------------------------------------------------------------------------------- what torch computes

"""
MODEL = """
def model_of(defined):
    model = defined["flax_module"]
    model = model if isinstance(model, nnx.Module) else model()
    if TRAINING is not None:
        model.train() if TRAINING else model.eval()
    return model


def at(module, path):
    for name in path:
        module = module[int(name)] if name.isdigit() else getattr(module, name)
    return module
"""
OF_CODE = '''
class Reached(Exception):
    pass


class Recorded(nnx.Module):
    """A layer that returns torch's array, or ends the run at the place."""

    def __init__(self, path):
        self.path, self.calls = path, -1

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if [self.path, self.calls] == PLACE:
            raise Reached([x for x in (*args, *kwargs.values()) if hasattr(x, "shape")][INDEX])
        return jnp.asarray(ARRAYS[f"returned/{self.path}/{self.calls}"])


def computed(defined):
    model = model_of(defined)
    for path in LAYERS:
        *outer, name = path.split(".")
        layer, owner = Recorded(path), at(model, outer)
        if name.isdigit():
            owner[int(name)] = layer
        else:
            setattr(owner, name, layer)
    arguments = {name: jnp.asarray(x) for name, x in ARRAYS.items() if name.startswith("input/")}
    try:
        outputs = model(*(arguments[f"input/{i}"] for i in range(len(arguments))))
    except Reached as reached:
        return reached.args[0]
    return jax.tree.leaves(outputs)[INDEX]
'''
OF_LAYER = """
def computed(defined):
    model = model_of(defined)
    layer = at(model, PLACE.split(".") if PLACE else [])
    state = []
    for path, variable in nnx.to_flat_state(nnx.state(layer)):
        name = "weight/" + ".".join(map(str, path))
        state.append((path, variable.replace(jnp.asarray(ARRAYS[name])) if name in ARRAYS else variable))
    nnx.update(layer, nnx.from_flat_state(state))
    arguments = {name: jnp.asarray(x) for name, x in ARRAYS.items() if name.startswith("input/")}
    return jax.tree.leaves(layer(*(arguments[f"input/{i}"] for i in range(len(arguments)))))[0]
"""
OF_LOSS = """
def computed(defined):
    names = sorted(name for name in ARRAYS if name.startswith("input/"))
    return defined["loss"](*(jnp.asarray(ARRAYS[name]) for name in names))
"""
ERROR = """
def error(defined):
    right = ARRAYS["torch"]
    result = np.asarray(computed(defined))
    if result.shape != right.shape or not np.array_equal(np.isfinite(result), np.isfinite(right)):
        return float("inf")
    finite = np.isfinite(right)
    size = np.abs(right[finite]).max(initial=0)
    return float(np.abs(result[finite] - right[finite]).max(initial=0) / (size or 1))
"""
MAIN = """
if __name__ == "__main__":
    with np.load(Path(__file__).with_suffix(".npz")) as file:
        ARRAYS = dict(file)
    difference = error(runpy.run_path(sys.argv[1]) if len(sys.argv) > 1 else globals())
    print(f"max|port - torch| / max|torch| = {{difference:.3g}}")
    sys.exit(difference > {bound})
"""


@dataclasses.dataclass
class Reproduction:
    """A source, torch's arrays, the constants of the program, and its functions."""

    source: str
    arrays: dict[str, np.ndarray]
    constants: dict[str, Any]
    functions: str

    def result(self, source: str, arrays: Mapping[str, np.ndarray] | None = None) -> tuple[Any, float]:
        """Return the array that a source computes, and its error; raises what the source raises."""
        defined: dict[str, Any] = {"__name__": "reproduction"}
        with exact():
            exec(f"import jax, numpy as np, jax.numpy as jnp\nfrom flax import nnx\n{source}", defined)
            program: dict[str, Any] = {"ARRAYS": self.arrays if arrays is None else arrays, **self.constants}
            exec(
                f"import jax, numpy as np, jax.numpy as jnp\nfrom flax import nnx\n{self.functions}", program
            )
            return np.asarray(program["computed"](defined)), program["error"](defined)

    def differs(self, source: str, arrays: Mapping[str, np.ndarray] | None = None) -> bool:
        return not self.result(source, arrays)[1] <= EQUAL

    def write(self, path: Path, sentence: str) -> None:
        arrays = path.with_suffix(".npz")
        np.savez(arrays, **self.arrays)  # type: ignore[arg-type]
        constants = "".join(f"{name} = {value!r}\n" for name, value in self.constants.items())
        head = HEAD.format(sentence=sentence.replace('"""', "'''"), name=path.name, arrays=arrays.name)
        main = MAIN.format(bound=EQUAL)
        path.write_text(
            f"{head}{self.source.strip()}\n{MIDDLE}{constants}\n{self.functions}\n{main}", "utf-8"
        )


def reproduction(
    run: PlainRun, arrived: Mapping[tuple[str, int], Arrived], divergence: Divergence, source: str
) -> Reproduction | None:
    """Return the program of a place, or None if the place needs a whole step to be seen."""
    task, path = run.task, divergence.candidate
    constants: dict[str, Any] = {"TRAINING": None if task.own_modes else task.training}
    if path == "loss":
        if run.loss is None:
            return None
        arrays = _of([*run.outputs.values(), *run.batch.targets], run.loss)
        return Reproduction(source, arrays, {}, OF_LOSS + ERROR)
    if is_forward(divergence):
        key = next(iter(arrived), None)
        if key is None or run.call.kwargs:
            return None
        constants |= {"PLACE": [*key] if key[1] >= 0 else None, "INDEX": arrived[key].position}
        constants["LAYERS"] = [*dict.fromkeys(path for path, _ in run.calls)]
        returned = {f"returned/{path}/{nth}": x for (path, nth), x in run.returned.items()}
        arrays = _of(run.call.args, arrived[key].torch) | returned
        return Reproduction(source, arrays, constants, MODEL + OF_CODE + ERROR)
    key = next((key for key in run.returned if key[0] == path), None)
    if key is None or divergence.kind == "":
        return None
    constants["PLACE"], prefix = path, f"{path}." if path else ""
    weights = {
        f"weight/{name.removeprefix(prefix)}": x for name, x in run.weights.items() if name.startswith(prefix)
    }
    arrays = _of(run.inputs[key], run.returned[key]) | weights
    return Reproduction(source, arrays, constants, MODEL + OF_LAYER + ERROR)


def _of(inputs: Iterable[Any], torch_array: np.ndarray) -> dict[str, np.ndarray]:
    return {f"input/{i}": np.asarray(x) for i, x in enumerate(inputs)} | {"torch": np.asarray(torch_array)}


def smallest(program: Reproduction, mended: str | None) -> Reproduction | None:
    """Return a smaller program that differs as the port does; None if it cannot show the difference."""
    try:
        if not program.differs(program.source):
            return None
        mended = mended if mended and not program.differs(mended) else None
    except Exception:
        return None  # layers with a structure that the program does not have
    end = time.perf_counter() + SECONDS
    if mended:
        program = _shorter(program, mended, end)
    return _fewer_statements(_fewer_arrays(program, mended), mended, end)


def _shorter(program: Reproduction, mended: str, end: float) -> Reproduction:
    """Cut equal axes of all arrays: torch's own numbers stay right if the mended port makes them."""
    for axis in range(3):
        lengths = {x.shape[axis] for name, x in program.arrays.items() if "input" in name and x.ndim > axis}
        for length in sorted(lengths, reverse=True):
            for few in range(1, length):
                if time.perf_counter() > end:
                    return program
                arrays = {
                    name: x.take(range(few), axis) if x.ndim > axis and x.shape[axis] == length else x
                    for name, x in program.arrays.items()
                    if not name.startswith("weight/")
                }
                arrays |= {name: x for name, x in program.arrays.items() if name.startswith("weight/")}
                try:
                    if program.differs(program.source, arrays) and not program.differs(mended, arrays):
                        program = dataclasses.replace(program, arrays=arrays)
                        break
                except Exception:
                    continue  # the shorter axis fits no longer
    return program


def _fewer_arrays(program: Reproduction, mended: str | None) -> Reproduction:
    """Leave out what neither the port nor the mended one reads before the place."""
    read: set[str] = set()

    class Noting(dict):
        def __getitem__(self, name: str) -> Any:
            read.add(name)
            return super().__getitem__(name)

    for source in (program.source, mended):
        if source is not None:
            program.result(source, Noting(program.arrays))
    arrays = program.arrays.items()
    needed = {name: x for name, x in arrays if name in read or name.startswith(("input", "weight"))}
    end = program.constants.get("PLACE")
    called = [
        p for p in program.constants.get("LAYERS", ()) if any(n.startswith(f"returned/{p}/") for n in needed)
    ]
    layers = (
        {"LAYERS": [*dict.fromkeys((*called, *(end[:1] if end else ())))]}
        if "LAYERS" in program.constants
        else {}
    )
    return dataclasses.replace(program, arrays=needed, constants=program.constants | layers)


def _fewer_statements(program: Reproduction, mended: str | None, end: float) -> Reproduction:
    """Leave out statements without which the same numbers differ, and the mended port's agree."""
    wrong, _ = program.result(program.source)
    # An edit of expressions leaves the statements as they are, which pairs them.
    pair = [
        program.source,
        *([mended] if mended and len(_parts(mended)) == len(_parts(program.source)) else []),
    ]
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for i in range(len(_parts(pair[0]))):
            if time.perf_counter() > end:
                break
            shorter = [_without(source, i) for source in pair]
            try:
                again, _ = program.result(shorter[0])
                is_smaller = np.array_equal(again, wrong, equal_nan=True) and not any(
                    program.differs(source) for source in shorter[1:]
                )
            except Exception:
                continue  # the statement is needed
            if is_smaller:
                pair = shorter
                break
    return dataclasses.replace(program, source=re.sub(r"\n{4,}", "\n\n\n", pair[0]))


def _parts(source: str) -> list[ast.stmt]:
    """Return all statements, the longest first."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sorted(statements, key=lambda node: node.lineno - (node.end_lineno or 0))


def _without(source: str, i: int) -> str:
    """Return the source without a statement; it does not parse if the statement is alone in its block."""
    lines, node = source.splitlines(keepends=True), _parts(source)[i]
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "".join((*lines[: first - 1], *lines[node.end_lineno :]))
