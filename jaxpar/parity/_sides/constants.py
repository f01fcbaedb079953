"""Constants: tensors that were rounded to float32 before a run, so that float64 in the run cannot help them.

A table made in `__init__`, a buffer from a checkpoint, an array that a function closes over. What their
rounding does to a model is found by doing it once more: `Constants` notes them, and moves each by up to half
a unit of its type.
"""

from __future__ import annotations

import dataclasses
import sys
import zlib
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from .._tensors import widened

OURS = ("jaxpar", "jax", "jaxlib", "flax", "optax", "torch")
"""Packages in whose files no constant of the user's is made."""


@dataclasses.dataclass
class Constants:
    """The constants of one side, by name, while it runs.

    Args:
      seed: of the numbers by which they are moved; None leaves them where they are.
      only: the names of those that are moved; all if left out.
      instead: other values, by name.

    Attributes:
      originals: their values, as they were.
      exact: arrays of float64 that a model brings along: they may be what the other side had rounded.
    """

    seed: int | None = None
    only: frozenset[str] | None = None
    instead: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    originals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    exact: list[np.ndarray] = dataclasses.field(default_factory=list)

    def __call__(self, values: np.ndarray, name: str | None = None) -> np.ndarray:
        """Such a constant in float64 (complex128), as this run has it.

        Args:
          name: of the constant; the line of the user's code that uses it if left out.
        """
        wide = widened(values)
        if values.dtype.kind == "c" or _is_exact(values):
            return wide
        name = name or f"{values.dtype}{list(values.shape)} in {_line()}"
        self.originals.setdefault(name, values)
        if name in self.instead:
            return self.instead[name].astype(np.float64).reshape(wide.shape)
        if self.seed is None or (self.only is not None and name not in self.only):
            return wide
        random = np.random.RandomState([self.seed, zlib.crc32(name.encode())])
        half = float(jnp.finfo(values.dtype).eps) / 2
        return wide * (1 + half * random.uniform(-1, 1, wide.shape))

    def note(self, values: np.ndarray) -> None:
        """An array of float64, which stays as it is."""
        if values.dtype == np.float64 and values.ndim and not _is_exact(values):
            self.exact.append(values)


def _is_exact(values: np.ndarray) -> bool:
    """Whether all are numbers of few digits, which nobody has rounded: positions, a mask, powers of two."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(values.dtype), values))


def _line() -> str:
    """The innermost line that is neither ours nor a framework's."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in OURS:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
