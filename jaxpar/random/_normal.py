"""Normal numbers from the generator's output, as torch's CPU kernels compute them, in Box and Muller's ways.

* Fewer than 16 values, or an array that is not contiguous: pairs in float64, by the C library's functions;
  the second value of a pair waits in the generator for the next call.
* float64: blocks of 16, the first eight uniform numbers giving radii and the last eight angles.
* float32, float16, bfloat16: the same blocks in float32, with the logf, sinf and cosf of S. Moshier's Cephes
  library, which torch's AVX2 kernel evaluates with fused multiply-adds. Here these are a product and a sum in
  float64, rounded to float32; tests/test_random_normal.py compares all 2^24 radii and angles.

If the number of values is not a multiple of 16, the last 16 are drawn once more. Source:
ATen/native/cpu/DistributionTemplates.h, ATen/core/DistributionsHelper.h; https://www.netlib.org/cephes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._uniform import BLOCK, Words, compute_dtype, fma, unit_interval


def fill(draw: Words, out: np.ndarray, mean: float, std: float) -> None:
    """Fill a contiguous array of 16 values or more."""
    flat, kind = out.reshape(-1), compute_dtype(out.dtype)
    multiple = flat.size // 16 * 16
    for start in range(0, multiple, BLOCK):
        part = flat[start : min(start + BLOCK, multiple)]
        part[...] = _blocks(unit_interval(draw, part.size, kind), mean, std)
    if flat.size > multiple:
        if out.dtype == kind:
            # torch draws the remaining values and then the last 16 once more, so the generator must advance.
            unit_interval(draw, flat.size - multiple, kind)
        flat[-16:] = _blocks(unit_interval(draw, 16, kind), mean, std)


def pairs(draw: Words, n: int) -> np.ndarray:
    values = np.empty((n, 2))
    for start in range(0, n, BLOCK):
        part = values[start : start + BLOCK]
        u = unit_interval(draw, part.size, part.dtype).reshape(-1, 2)
        radius = np.sqrt(-2.0 * _each(math.log1p, -u[:, 1]))
        angle = 2.0 * math.pi * u[:, 0]
        part[:, 0] = radius * _each(math.cos, angle)
        part[:, 1] = radius * _each(math.sin, angle)
    return values.reshape(-1)


def shift(values: np.ndarray, mean: float, std: float) -> np.ndarray:
    mean, std = values.dtype.type(mean), values.dtype.type(std)
    # The plain sum with a mean of 0 rounds once, too. It is not omitted, because it turns -0 into 0.
    return fma(values, std, mean) if mean else values * std + mean


def _blocks(u: np.ndarray, mean: float, std: float) -> np.ndarray:
    u = u.reshape(-1, 2, 8)
    first, second = u[:, 0].reshape(-1), u[:, 1].reshape(-1)
    angle = u.dtype.type(2 * math.pi) * second
    if u.dtype == np.float32:
        log, (sin, cos) = _log(1 - first), _sincos(angle)
    else:
        log, sin, cos = _each(math.log, 1 - first), _each(math.sin, angle), _each(math.cos, angle)
    radius = np.sqrt(u.dtype.type(-2) * log)
    values = np.stack([(radius * cos).reshape(-1, 8), (radius * sin).reshape(-1, 8)], 1)
    return shift(values.reshape(-1), mean, std)


# ------------------------------------------------------------------------------------ the C library


def _each(f: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    # NumPy's own functions use other algorithms than the C library on some processors.
    return np.fromiter(map(f, x.tolist()), np.float64, x.size)


# ------------------------------------------------------------------------- Cephes, single precision


def _constants(*values: float) -> list[np.float64]:
    return [np.float64(np.float32(value)) for value in values]


_LOG = _constants(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LOG_2 = _constants(-2.12194440e-4, 0.693359375)
"""log(2) in two parts, the small one first."""
_SIN = _constants(-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = _constants(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_QUARTER_PI = _constants(0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8)
"""pi / 4 in three parts."""
_SQRT_HALF_BITS = 0x3F3504F3


def _round(x: np.ndarray) -> np.ndarray:
    """To float32; it stays in float64, where the next product is exact."""
    return x.astype(np.float32).astype(np.float64)


def _log(x: np.ndarray) -> np.ndarray:
    """The natural logarithm of float32 numbers in (0, 1]."""
    # x = 2^e (1 + f) with 1 + f between the roots of 1/2 and 2.
    bits = x.view(np.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = ((bits - (exponent << 23)).view(np.float32) - np.float32(1)).astype(np.float64)
    e = exponent.astype(np.float64)
    z = _round(f * f)
    y: Any = _LOG[0]
    for coefficient in _LOG[1:]:
        y = _round(y * f + coefficient)
    y = _round(y * f)
    y = _round(y * z + _round(e * _LOG_2[0]))
    y = _round(y - 0.5 * z)
    return (_round(f + y) + e * _LOG_2[1]).astype(np.float32)


def _sincos(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sine and cosine of float32 numbers in [0, 2 pi]."""
    octant = (x * np.float32(4 / math.pi)).astype(np.int32)
    octant = (octant + 1) & ~1
    y = octant.astype(np.float64)
    f = x.astype(np.float64)
    for part in _QUARTER_PI:
        f = _round(f - y * part)
    z = _round(f * f)
    cos = _round(_round(_COS[0] * z + _COS[1]) * z + _COS[2])
    cos = _round(_round(cos * z) * z - 0.5 * z)
    cos = (cos + 1).astype(np.float32)
    sin = _round(_round(_SIN[0] * z + _SIN[1]) * z + _SIN[2])
    sin = (_round(sin * z) * f + f).astype(np.float32)
    exchanged = (octant & 2) != 0
    sin, cos = np.where(exchanged, cos, sin), np.where(exchanged, sin, cos)
    # The sign is the highest bit: 4 << 29.
    sin.view(np.uint32)[...] ^= ((octant & 4) << 29).view(np.uint32)
    cos.view(np.uint32)[...] ^= (((octant + 2) & 4) << 29).view(np.uint32)
    return sin, cos
