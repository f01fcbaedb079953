"""Uniform numbers from the generator's output, as torch's CPU kernels compute them.

Source: ATen/core/TransformationHelper.h and ATen/native/cpu/DistributionTemplates.h, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Words = Callable[[int], np.ndarray]
"""Returns that many 32-bit numbers, in uint64."""
BLOCK = 1 << 13
"""How many values are made at a time. Intermediate arrays then stay in the cache, and the allocator reuses
them instead of asking the system for new pages, which would take half of the time."""


def fma(a: np.ndarray, b: float | np.ndarray, c: float | np.ndarray) -> np.ndarray:
    """fma(a, b, c) in a's type, float32 or float64; `b` and `c` are numbers or arrays of that type."""
    # Exact unless, in float64, the product is below 2^-969 or above the largest number.
    b, c = np.asarray(b, np.float64), np.asarray(c, np.float64)
    if a.dtype == np.float32:
        # 24 + 24 bits fit float64, so the product is exact; the sum, rounded to odd, keeps everything
        # that the rounding to float32 depends on.
        return _odd_sum(a.astype(np.float64) * b, c).astype(np.float32)
    # S. Boldo, G. Melquiond: Emulation of a FMA and correctly-rounded sums: proved algorithms using
    # rounding to odd. IEEE Transactions on Computers 57 (2008).
    high, low = _product(a, b)
    top, remainder = _sum(c, low)
    top, middle = _sum(high, top)
    return top + _odd_sum(remainder, middle)


def _sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum and its rounding error (D. Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded product and its rounding error (T. Dekker)."""
    total = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return total, a_low * b_low - (((total - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _split(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum; if it is inexact, that one of its two neighbours whose last bit is 1 ("rounded to odd")."""
    total, lost = _sum(a, b)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    if even.any():
        bits += even * np.where((lost > 0) == (total > 0), 1, -1)
    return total


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
