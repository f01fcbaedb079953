"""Fused multiply-add, a * b + c with a single rounding: one instruction of processors, absent from NumPy.

Without it about half of all values of `uniform_(a, b)` would differ from torch's in the last bit.
"""

from __future__ import annotations

import numpy as np


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
