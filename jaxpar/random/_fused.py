"""a * b + c with one rounding, which processors have as one instruction and NumPy has not.

torch's kernels are compiled with it, and about half of all values of `uniform_(a, b)` would differ
in the last bit without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def fused(a: Array, b: Any, c: Any) -> Array:
    """fma(a, b, c) in a's type, float32 or float64; `b` and `c` are scalars or arrays of that type.

    Exact unless, in float64, the product is below 2^-969 or above the largest number.
    """
    if a.dtype == np.float32:
        # 24 + 24 bits fit float64, so the product is exact; the sum, rounded to odd, keeps all
        # that the rounding to float32 has to know.
        return _odd_sum(a.astype(np.float64) * np.float64(b), np.float64(c)).astype(np.float32)
    # S. Boldo, G. Melquiond: Emulation of a FMA and correctly-rounded sums: proved algorithms using
    # rounding to odd. IEEE Transactions on Computers 57 (2008).
    high, low = _product(a, np.float64(b))
    top, rest = _sum(np.float64(c), low)
    top, middle = _sum(high, top)
    return top + _odd_sum(rest, middle)


def _sum(a: Any, b: Any) -> tuple[Array, Array]:
    """The rounded sum and what the rounding lost (D. Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: Array, b: Any) -> tuple[Array, Array]:
    """The rounded product and what the rounding lost (T. Dekker)."""
    total = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return total, a_low * b_low - (((total - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _split(a: Any) -> tuple[Any, Any]:
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _odd_sum(a: Any, b: Any) -> Array:
    """The sum, and where it is inexact, of its two neighbours the one whose last bit is 1."""
    total, lost = _sum(a, b)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    if even.any():
        bits += even * np.where((lost > 0) == (total > 0), 1, -1)
    return total
