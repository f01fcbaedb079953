"""interpolate: each axis is resized by itself, as a sum of a few gathered copies.

`jax.image.resize` has neither torch's "nearest" nor its cubic (a = -0.75; JAX has -0.5) nor align_corners,
and the gradient here is a sum, too, not a scatter, which adds up in no fixed order on accelerators.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from .._checks import INTERPOLATING, check_interpolation
from .._window import Scale
from ._avg_pool import adaptive_avg_pool

RANKS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "lanczos": 2}


def interpolate(
    x: jax.Array,
    size: int | Sequence[int] | None = None,
    scale_factor: Scale | Sequence[Scale] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> jax.Array:
    """Resize the spatial axes.

    Args:
      x: [N, *S, C] with one to three spatial axes.
      size: the new sizes, one for all axes or one for each. Or:
      scale_factor: multiplies the sizes; the product is rounded down.
      mode: "nearest", "nearest-exact", "linear" (one axis), "bilinear", "bicubic" (two), "trilinear" (three),
        "area", or "lanczos" (two, with antialias).
      align_corners: whether the centres of the corner pixels stay in place, rather than their edges.
      recompute_scale_factor: compute positions from the resulting sizes, rather than, by default, from
        `scale_factor` as given.
      antialias: widen the kernel when shrinking; "bilinear", "bicubic" and "lanczos" only.

    Returns: [N, *T, C]. The gradient is the transpose of the forward pass; it has no forward mode. Raises:
    ValueError: options that do not go together; a size below 1. NotImplementedError: a mode that does not fit
    the number of axes.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.interpolate(jnp.ones((1, 4, 4, 3)), scale_factor=2, mode="bilinear").shape
    (1, 8, 8, 3)

    torch counterpart: `torch.nn.functional.interpolate`. In two rare cases torch disagrees with itself and
    this function does not: "nearest" with a scale_factor whose product is rounded to n or 2n has the gradient
    of a different forward pass, and float32 "nearest-exact" breaks ties differently in one and in two
    dimensions.
    """
    check_interpolation(size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    rank = x.ndim - 2
    if not 1 <= rank <= 3:
        raise NotImplementedError(f"interpolate: x has shape {x.shape}; [N, *S, C] has 3 to 5 axes.")
    if RANKS.get(mode, rank) != rank:
        raise NotImplementedError(f"Got {x.ndim}D input, but {mode} mode needs {RANKS[mode] + 2}D input")
    n = x.shape[1:-1]
    sizes, factors = _sizes(n, size, scale_factor)
    if recompute_scale_factor or mode == "area":
        factors = (None,) * rank
    if min(sizes) < 1 or min(n) < 1:
        raise ValueError(
            f"interpolate: Input and output sizes should be greater than 0, but got input {n} output {sizes}."
        )
    if mode == "area":
        return adaptive_avg_pool(x, sizes)
    if mode in INTERPOLATING and not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"interpolate: mode={mode} is for floating point numbers, not {x.dtype}.")
    return _interpolate(x, sizes, factors, mode, bool(align_corners), antialias)


def _sizes(
    n: Sequence[int], size: int | Sequence[int] | None, scale_factor: Scale | Sequence[Scale] | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    option: Any = scale_factor if size is None else size
    values = tuple(option) if isinstance(option, Sequence) else (option,) * len(n)
    if len(values) != len(n):
        raise ValueError(
            "Input and output must have the same number of spatial dimensions, but got input with spatial "
            f"dimensions of {tuple(n)} and {'scale_factor' if size is None else 'output size'} of {option}."
        )
    if size is None:
        return tuple(math.floor(i * f) for i, f in zip(n, values, strict=True)), values
    if not all(isinstance(o, int | np.integer) for o in values):
        raise TypeError(f"expected size to be one of int or a tuple of ints, but got {option}")
    return values, (None,) * len(n)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5), inline=True)
def _interpolate(
    x: jax.Array,
    sizes: tuple[int, ...],
    factors: tuple[float | None, ...],
    mode: str,
    align_corners: bool,
    antialias: bool,
) -> jax.Array:
    # Half-precision inputs are summed in float32, as in torch.
    wide = jnp.promote_types(x.dtype, jnp.float32) if mode in INTERPOLATING else x.dtype
    y = x.astype(wide)
    for axis, (o, factor) in enumerate(zip(sizes, factors, strict=True), 1):
        n = x.shape[axis]
        if mode not in INTERPOLATING:
            index = nearest(n, o, factor, mode == "nearest-exact", x.dtype)
            y = _resample(y, axis, GatherTable(n, index[:, None], np.ones((o, 1))))
        elif n != o or (mode == "bicubic" and not antialias):
            # torch copies axes that keep their size, except in bicubic mode without antialias.
            # Tables depend on shapes only, so NumPy computes them while JAX traces.
            weights = antialias_weights if antialias else filter_weights
            y = _resample(y, axis, GatherTable(n, *weights(n, o, factor, align_corners, FILTERS[mode])))
    return y.astype(x.dtype)


class GatherTable:
    """`index` and `weights`, both [o, t]: element i of o is the sum over t of weights[i] * x[index[i]]."""

    def __init__(self, n: int, index: np.ndarray, weights: np.ndarray):
        self.n, self.index, self.weights = n, index, weights

    def transpose(self) -> GatherTable:
        """The table of the transposed sum. Rows of different lengths are filled up with weights of 0."""
        o = len(self.index)
        # The dense matrix is small: sizes of one axis only. Elements that are never read get weights of 0.
        dense = np.zeros((self.n, o))
        np.add.at(dense, (self.index, np.arange(o)[:, None]), self.weights)
        longest = max((dense != 0).sum(1).max(initial=1), 1)
        index = np.argsort(dense == 0, axis=1, kind="stable")[:, :longest]
        return GatherTable(o, index, np.take_along_axis(dense, index, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _resample(x: jax.Array, axis: int, table: GatherTable) -> jax.Array:
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]

    def term(t: int) -> jax.Array:
        weights = table.weights[:, t]
        copied = jnp.take(x, table.index[:, t], axis)
        # nearest needs no product.
        if np.all(weights == 1):
            return copied
        # Weights of 0 pad the table. They multiply arbitrary elements, whose NaN must not propagate.
        copied = jnp.where((weights != 0).reshape(shape), copied, 0) if np.any(weights == 0) else copied
        return copied * jnp.asarray(weights.reshape(shape), x.dtype)

    return functools.reduce(jnp.add, [term(t) for t in range(table.index.shape[1])])


def _forward(x: jax.Array, axis: int, table: GatherTable) -> tuple[jax.Array, None]:
    return _resample(x, axis, table), None


def _backward(axis: int, table: GatherTable, _: None, dy: jax.Array) -> tuple[jax.Array]:
    return (_resample(dy, axis, table.transpose()),)


_resample.defvjp(_forward, _backward)


# Source: ATen/native/UpSample.h and ATen/native/cpu/UpSampleKernel.cpp (the helpers of antialias).
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
FILTERS = {"linear": LINEAR, "bilinear": LINEAR, "trilinear": LINEAR, "bicubic": CUBIC, "lanczos": LANCZOS}


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
