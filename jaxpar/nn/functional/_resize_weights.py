"""Indices and weights of the elements that each element of a resized axis combines, in NumPy's float64.

Source: ATen/native/UpSample.h and ATen/native/cpu/UpSampleKernel.cpp (the helpers of antialias).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

Kernel = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Filter:
    """A kernel that is 0 beyond `support`; `antialias` is the kernel for antialiasing."""

    support: int
    kernel: Kernel
    antialias: Kernel


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Kernel:
    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return kernel


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


LINEAR = Filter(1, _triangle, _triangle)
# With antialias torch follows Pillow, whose cubic has a different constant.
CUBIC = Filter(2, _cubic(-0.75), _cubic(-0.5))
LANCZOS = Filter(3, _lanczos, _lanczos)


def nearest(n: int, o: int, factor: float | None, exact: bool, dtype: DTypeLike) -> np.ndarray:
    """[o]: which of n elements each of o elements copies."""
    # Near whole numbers torch's roundings decide: the scale has the input's precision, and the position is
    # rounded to float32 before the floor is taken.
    kind = np.float64 if dtype == np.float64 else np.float32
    scale = kind(1 / factor if factor else n / o)
    i = np.arange(o)
    if exact:
        # One rounding for the product and the difference, as in a fused multiply-add.
        at = np.maximum((np.float64(scale) * (i + 0.5) - 0.5).astype(kind), 0) + kind(0.5)
    else:
        at = i * np.float64(scale)
    return np.minimum(np.floor(at.astype(np.float32)).astype(int), n - 1)


def _scale(n: int, o: int, factor: float | None, align_corners: bool) -> float:
    """The distance between two neighbours of o, in elements of n."""
    if align_corners:
        return (n - 1) / (o - 1) if o > 1 else 0.0
    return 1 / factor if factor else n / o


def filter_weights(
    n: int, o: int, factor: float | None, align_corners: bool, filter: Filter
) -> tuple[np.ndarray, ...]:
    """Which of n elements each of o elements is a sum of, [o, t], and their weights, [o, t]."""
    scale = _scale(n, o, factor, align_corners)
    at = np.arange(o) * scale if align_corners else (np.arange(o) + 0.5) * scale - 0.5
    # torch clamps negative positions for linear modes only; cubic filters read repeated elements instead.
    if filter is LINEAR:
        at = np.maximum(at, 0)
    base = np.floor(at).astype(int)
    steps = np.arange(1 - filter.support, 1 + filter.support)
    weights = filter.kernel((at - base)[:, None] - steps)
    return np.clip(base[:, None] + steps, 0, n - 1), weights


def antialias_weights(
    n: int, o: int, factor: float | None, align_corners: bool, filter: Filter
) -> tuple[np.ndarray, ...]:
    """As `filter_weights`; when shrinking, the filter is stretched, cut at the ends and normalised."""
    scale = _scale(n, o, factor, align_corners)
    stretch = max(scale, 1.0)
    support = filter.support * stretch
    center = (np.arange(o) + 0.5) * scale
    # Truncation after adding 0.5, as in torch and Pillow.
    begin = np.maximum((center - support + 0.5).astype(int), 0)
    end = np.minimum((center + support + 0.5).astype(int), n)
    element = begin[:, None] + np.arange(max((end - begin).max(), 1))
    weights = filter.antialias((element - center[:, None] + 0.5) / stretch)
    weights = np.where(element < end[:, None], weights, 0)
    # Normalise after cutting at the ends, so that border pixels keep their brightness.
    total = weights.sum(1, keepdims=True)
    return np.minimum(element, n - 1), weights / np.where(total == 0, 1, total)
