"""Which elements of an axis a resized element is made of, and their weights.

All of it is NumPy in float64: sizes are known when the program is built. Source:
ATen/native/UpSample.h (area_pixel_compute_source_index, cubic_convolution) and
ATen/native/cpu/UpSampleKernel.cpp (the helpers behind antialias).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Filter:
    """A kernel that is 0 from `support` on; `antialias` is the one that antialiasing uses."""

    support: int
    kernel: Callable[[np.ndarray], np.ndarray] | None
    antialias: Callable[[np.ndarray], np.ndarray]


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return kernel


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


LINEAR = Filter(1, _triangle, _triangle)
CUBIC = Filter(2, _cubic(-0.75), _cubic(-0.5))  # two constants: torch's own, and Pillow's for antialias
LANCZOS = Filter(3, None, _lanczos)


def nearest(n: int, o: int, factor: float | None, exact: bool, dtype: Any) -> np.ndarray:
    """The element of n that each of o elements is a copy of, [o].

    torch's own roundings decide where a position is next to a whole number: the scale has the
    input's precision, and the position is rounded to float32 before the floor is taken.
    """
    kind = np.float64 if dtype == np.float64 else np.float32
    scale = kind(1 / factor if factor else n / o)
    i = np.arange(o)
    if exact:  # one rounding for the product and the difference, as in a fused multiply-add
        at = np.maximum((np.float64(scale) * (i + 0.5) - 0.5).astype(kind), 0) + kind(0.5)
    else:
        at = i * np.float64(scale)
    return np.minimum(np.floor(at.astype(np.float32)).astype(int), n - 1)


def scale_of(n: int, o: int, factor: float | None, align_corners: bool) -> float:
    """How far two neighbours of o are apart, in elements of n."""
    if align_corners:
        return (n - 1) / (o - 1) if o > 1 else 0.0
    return 1 / factor if factor else n / o


def taps(n: int, o: int, factor: float | None, align_corners: bool, filter: Filter) -> tuple[np.ndarray, ...]:
    """The elements of n that each of o elements is a sum of, [o, t], and their weights, [o, t].

    Beyond the ends the first and the last element are repeated.
    """
    scale = scale_of(n, o, factor, align_corners)
    at = np.arange(o) * scale if align_corners else (np.arange(o) + 0.5) * scale - 0.5
    if filter is LINEAR:
        at = np.maximum(at, 0)
    base = np.floor(at).astype(int)
    steps = np.arange(1 - filter.support, 1 + filter.support)
    assert filter.kernel is not None
    weights = filter.kernel((at - base)[:, None] - steps)
    return np.clip(base[:, None] + steps, 0, n - 1), weights


def antialiased(
    n: int, o: int, factor: float | None, align_corners: bool, filter: Filter
) -> tuple[np.ndarray, ...]:
    """As `taps`, with the filter stretched by the scale when it shrinks, cut at the ends and normalised."""
    scale = scale_of(n, o, factor, align_corners)
    stretch = max(scale, 1.0)
    support = filter.support * stretch
    center = (np.arange(o) + 0.5) * scale
    begin = np.maximum((center - support + 0.5).astype(int), 0)
    end = np.minimum((center + support + 0.5).astype(int), n)
    element = begin[:, None] + np.arange(max((end - begin).max(), 1))
    weights = filter.antialias((element - center[:, None] + 0.5) / stretch)
    weights = np.where(element < end[:, None], weights, 0)
    total = weights.sum(1, keepdims=True)
    return np.minimum(element, n - 1), weights / np.where(total == 0, 1, total)
