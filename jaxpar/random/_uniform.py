"""Uniform numbers from the generator's words, as torch's CPU kernels compute them.

A float32 takes the low 24 bits of one 32-bit word, a float64 the low 53 of two words. float16 and
bfloat16 are rounded float32. Source: ATen/core/TransformationHelper.h (`uniform_real`) and
ATen/native/cpu/DistributionTemplates.h (`uniform_kernel`), torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._fused import fused

Array = np.ndarray[Any, np.dtype[Any]]
Words = Callable[[int], Array]
"""Gives so many 32-bit words, in uint64."""

BLOCK = 1 << 13
"""How many values are made at a time. What is between the words and the values then stays in the cache, and
the allocator reuses it instead of asking the system for new pages, which would take half of the time."""


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which torch computes: float64 for float64, float32 for all others."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def doubled(words: Array) -> Array:
    """64-bit words: of every two words, the first is the high half."""
    return words[0::2] << np.uint64(32) | words[1::2]


def unit(words: Words, n: int, dtype: np.dtype[Any]) -> Array:
    """n numbers in [0, 1), float32 or float64."""
    if dtype == np.float64:
        return (doubled(words(2 * n)) & np.uint64(2**53 - 1)) * 2.0**-53
    return (words(n) & np.uint64(2**24 - 1)).astype(np.float32) * np.float32(2.0**-24)


def between(u: Array, low: float, high: float) -> Array:
    """u * (high - low) + low, with the one rounding that torch's compiled code has."""
    low, high = u.dtype.type(low), u.dtype.type(high)
    if (low, high) == (0, 1):
        return u
    if low == -high:
        # What initialisations need: high * (2u - 1), and 2u - 1 is exact.
        return (u + u - u.dtype.type(1)) * high
    return fused(u, high - low, low)


def fill(words: Words, out: Array, low: float, high: float) -> None:
    """Fills a contiguous array; a value that is rounded up to `high` becomes `low`."""
    flat, top = out.reshape(-1), out.dtype.type(high)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        part[...] = between(unit(words, part.size, wide(out.dtype)), low, high)
        ends = part == top
        if ends.any():
            part[ends] = out.dtype.type(low)
