"""Uniform numbers from the generator's output, as torch's CPU kernels compute them.

Source: ATen/core/TransformationHelper.h and ATen/native/cpu/DistributionTemplates.h, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._fma import fma

Words = Callable[[int], np.ndarray]
"""Returns that many 32-bit numbers, in uint64."""

BLOCK = 1 << 13
"""How many values are made at a time. Intermediate arrays then stay in the cache, and the allocator reuses
them instead of asking the system for new pages, which would take half of the time."""


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which torch computes: float64 for float64, float32 for all others."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def to_64_bits(halves: np.ndarray) -> np.ndarray:
    """Join pairs of 32-bit numbers to 64-bit ones; the first of each pair is the high half."""
    return halves[0::2] << np.uint64(32) | halves[1::2]


def unit_interval(draw: Words, n: int, dtype: np.dtype) -> np.ndarray:
    if dtype == np.float64:
        return (to_64_bits(draw(2 * n)) & np.uint64(2**53 - 1)) * 2.0**-53
    return (draw(n) & np.uint64(2**24 - 1)).astype(np.float32) * np.float32(2.0**-24)


def between(u: np.ndarray, low: float, high: float) -> np.ndarray:
    """u * (high - low) + low, rounded once, as in torch's compiled code."""
    low, high = u.dtype.type(low), u.dtype.type(high)
    if (low, high) == (0, 1):
        return u
    if low == -high:
        # The case of initialisations: high * (2u - 1), where 2u - 1 is exact and needs no fma.
        return (u + u - u.dtype.type(1)) * high
    return fma(u, high - low, low)


def fill(draw: Words, out: np.ndarray, low: float, high: float) -> None:
    """Fill a contiguous array; a value that is rounded up to `high` becomes `low`."""
    flat, top = out.reshape(-1), out.dtype.type(high)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        part[...] = between(unit_interval(draw, part.size, compute_dtype(out.dtype)), low, high)
        ends = part == top
        if ends.any():
            part[ends] = out.dtype.type(low)
