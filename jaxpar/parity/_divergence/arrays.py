"""Arrays: what was made of torch's array to get Flax's, where it can be read off both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from .._result import Cause
from .._tensors import widened
from .catalogue.scales import in_words
from .search import EQUAL, SINGLE, Found, relative_error

FEWEST = 4
"""Elements of an array that is said to be a multiple: of fewer, chance may say so."""


def made_of(ours: np.ndarray, theirs: np.ndarray) -> list[Found]:
    """Changes of torch's array, of no elements or axes in particular, that make it Flax's."""
    if ours.shape != theirs.shape or ours.size < 2 or not np.isfinite(widened(theirs)).all():
        return []
    found = (Cause(text, relative_error(ours, x)) for text, x in _changes(ours, theirs))
    causes = sorted((c for c in found if c.relative <= EQUAL), key=lambda c: c.relative)
    return [Found(cause) for cause in causes or _rounded(ours, theirs)]


def _changes(ours: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if theirs.dtype.kind in "iu":
        shift = int(ours.flat[0]) - int(theirs.flat[0])
        yield f"positions are torch's (they are shifted by {shift})", theirs + shift
    elif theirs.dtype.kind == "f" and ours.size >= FEWEST:
        # The smallest elements have the fewest digits of the ratio.
        largest = np.unravel_index(np.abs(theirs).argmax(), theirs.shape)
        scale = float(ours[largest] / theirs[largest]) if theirs[largest] else 0.0
        text = f"there is no factor (it is multiplied by {in_words(scale, reversed(theirs.shape))})"
        yield text, theirs * scale
    for axis, length in enumerate(theirs.shape):
        if length > 1:
            yield f"axis {axis} has torch's order (it is reversed)", np.flip(theirs, axis)
            for by in (1, -1):
                yield f"axis {axis} has torch's places (rows are rolled by {by})", np.roll(theirs, by, axis)
            yield from blocks(theirs, axis)
    for a, b in itertools.combinations(range(theirs.ndim), 2):
        if theirs.shape[a] == theirs.shape[b] > 1:
            yield f"axes are torch's (axes {a} and {b} are swapped)", theirs.swapaxes(a, b)


def blocks(x: np.ndarray, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """An axis of (heads, size) read as (size, heads), or of (3, heads, size) as (heads, 3, size)."""
    x = np.moveaxis(x, axis, -1)
    length = x.shape[-1]
    divisors = [n for n in range(2, length) if length % n == 0]
    for first, second in itertools.product(divisors, divisors):
        last = length // (first * second)
        # With something behind them, one of both is the number of parts: real and imaginary, q, k and v.
        if length % (first * second) or (last > 1 and min(first, second) > 3):
            continue
        split = x.reshape(*x.shape[:-1], first, second, last)
        turned = split.swapaxes(-2, -3).reshape(x.shape)
        right, wrong = ((*each, last)[: 2 + (last > 1)] for each in ((second, first), (first, second)))
        yield f"axis {axis} is read as {right} (it is read as {wrong})", np.moveaxis(turned, -1, axis)


def _rounded(ours: np.ndarray, theirs: np.ndarray) -> list[Cause]:
    """All values of one side are values of float32, and are torch's but for that."""
    error = relative_error(ours, theirs)
    if theirs.dtype.kind != "f" or error > SINGLE:
        return []
    narrow = [np.array_equal(x.astype(np.float32).astype(x.dtype), x) for x in (ours, theirs)]
    if narrow == [True, False]:
        return [Cause("it is in float64, as torch's is (its values are those of float32)", error)]
    if narrow == [False, True]:
        return [Cause("it is a float32 table, as torch's is (its values are those of float64)", error)]
    return []
