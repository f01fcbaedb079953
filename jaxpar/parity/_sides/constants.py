"""Constants: tensors that were rounded to float32 before a run, which float64 arithmetic cannot undo.

Examples are a table made in `__init__` and a buffer from a checkpoint. The effect of their rounding is
measured by perturbing each by up to half a unit in the last place of its type.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._tensors import widened

SIXTEEN_BITS = ("float16", "bfloat16")
# Packages whose lines are not the user's.
OURS = ("jaxpar", "jaxpar_recorder", "jax", "jaxlib", "flax", "optax", "keras", "torch")


@dataclasses.dataclass
class Constants:
    """The constants of one side, by name, while it runs.

    `only` names the constants to perturb (all by default), `instead` holds replacement values. `originals`
    are the unperturbed values, `exact` the model's float64 arrays: perhaps the other side's constants
    unrounded. `casts` are the lines that round to 16 bits, which float64 leaves out.
    """

    seed: int | None = None
    only: frozenset[str] | None = None
    instead: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    originals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    exact: list[np.ndarray] = dataclasses.field(default_factory=list)
    casts: dict[str, None] = dataclasses.field(default_factory=dict)

    def __call__(self, values: np.ndarray, name: str | None = None) -> np.ndarray:
        """Return a constant in float64 (complex128); its default name is the line of the user's code."""
        wide = widened(values)
        if values.dtype.kind == "c" or _is_exact(values):
            return wide
        name = name or f"{values.dtype}{list(values.shape)} in {users_line()}"
        self.originals.setdefault(name, values)
        if name in self.instead:
            return self.instead[name].astype(np.float64).reshape(wide.shape)
        if self.seed is None or (self.only is not None and name not in self.only):
            return wide
        random = np.random.RandomState([self.seed, zlib.crc32(name.encode())])
        half = float(jnp.finfo(values.dtype).eps) / 2
        return wide * (1 + half * random.uniform(-1, 1, wide.shape))

    def note_cast(self, dtype: Any, line: str | None = None) -> None:
        """Note a cast to NumPy's or torch's dtype."""
        name = str(dtype).removeprefix("torch.")
        if name in SIXTEEN_BITS:
            self.casts[f"{name} in {line or users_line()}"] = None

    def note(self, values: np.ndarray) -> None:
        if values.dtype == np.float64 and values.ndim and not _is_exact(values):
            self.exact.append(values)


def _is_exact(values: np.ndarray) -> bool:
    """Whether all values are exact in float16, hence unrounded: positions, masks, powers of two."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(values.dtype), values))


@functools.cache
def libraries() -> tuple[str, ...]:
    """Return the folders of `OURS`. A user's folder may have the same name: flax/examples/mnist."""
    specs = map(importlib.util.find_spec, OURS)
    folders = (os.path.dirname(spec.origin or "") for spec in specs if spec)
    # The recorder in one file has no folder, and every path starts with a separator.
    return tuple(folder + os.sep for folder in folders if folder)


def frames_of(equation: Any) -> Sequence[Any]:
    """Return the frames in which a JAX equation was traced, the innermost first."""
    traceback = equation.source_info.traceback if equation else None
    return traceback.frames if traceback else ()


def line_of(equation: Any, otherwise: str) -> str:
    """Return the user's file and line in which a JAX equation was traced, or `otherwise`."""
    for frame in frames_of(equation):
        if not frame.file_name.startswith(libraries()):
            return f"{frame.file_name.rpartition('/')[2]}:{frame.line_num}"
    return otherwise


def users_line() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in OURS:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
