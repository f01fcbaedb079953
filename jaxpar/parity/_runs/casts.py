"""Tell which values a smaller floating-point type can hold."""

from __future__ import annotations

import numpy as np

from .operation_types import FLOATS

LEAST = 6
"""Nonzero values that must be representable: a few are so by chance."""


def representable(x: np.ndarray) -> str:
    """Return "bfloat16" or "float16" if that type holds all values, which wider types hold by chance only."""
    values = np.unique(np.abs(x[np.isfinite(x) & (x != 0)]))
    mantissas, exponents = np.frexp(values)
    # Integers and simple fractions are representable in any type.
    if len(values) < LEAST or np.array_equal(mantissas * 16, np.round(mantissas * 16)):
        return ""
    for kind in ("bfloat16", "float16"):
        bits = FLOATS[kind]
        # float16 has no values between the multiples of 2**-24.
        scaled = np.ldexp(mantissas, np.minimum(bits, exponents + 24) if kind == "float16" else bits)
        if np.array_equal(scaled, np.round(scaled)):
            return kind
    return ""
