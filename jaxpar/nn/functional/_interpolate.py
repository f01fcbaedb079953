"""interpolate: the same picture with other sizes.

`jax.image.resize` has neither torch's "nearest" (the element below, not the nearest one), nor its
cubic (a = -0.75; JAX has -0.5), nor align_corners, and it antialiases by default. Here every axis is
resized by itself: a sum of a few shifted copies of the axis, in both directions; the gradient is such
a sum as well, not a scatter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._adaptive_pool import adaptive_avg_pool
from ._taps import CUBIC, LANCZOS, LINEAR, antialiased, nearest, taps

FILTERS = {"linear": LINEAR, "bilinear": LINEAR, "trilinear": LINEAR, "bicubic": CUBIC, "lanczos": LANCZOS}
RANKS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "lanczos": 2}
COPIES = ("nearest", "nearest-exact", "area")


def interpolate(
    x: jax.Array,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> jax.Array:
    """Resizes the spatial axes.

    Args:
      x: [N, *S, C] with one to three spatial axes.
      size: the new sizes, one for all axes or one for each. Or:
      scale_factor: what the sizes are multiplied by; the product is rounded down.
      mode: "nearest", "nearest-exact", "linear" (one axis), "bilinear", "bicubic" (two), "trilinear"
        (three), "area", or "lanczos" (two, with antialias).
      align_corners: whether the corners' centres stay where they are, rather than their edges.
      recompute_scale_factor: whether positions follow from the sizes that came out, rather than from
        `scale_factor` as it was given, which is the default.
      antialias: widen the kernel when shrinking; "bilinear", "bicubic" and "lanczos" only.

    Returns:
      [N, *T, C]. The gradient is the transpose of the forward pass; it has no forward mode.

    Raises:
      ValueError: options that do not go together; a size below 1. NotImplementedError: a mode that
        does not fit the number of axes.

    torch counterpart: `torch.nn.functional.interpolate`. In two rare cases torch's own code
    disagrees with itself and this one does not: "nearest" with a scale_factor whose product is
    rounded to n or 2n has a gradient that belongs to another forward pass, and float32
    "nearest-exact" decides ties differently in one and in two dimensions.
    """
    check_options(size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    rank = x.ndim - 2
    _check_rank(x, mode)
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
    if mode in FILTERS and not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"interpolate: mode={mode} is for floating point numbers, not {x.dtype}.")
    return _interpolate(x, sizes, factors, mode, bool(align_corners), antialias)


def check_options(
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool,
) -> None:
    """Raises what torch raises for options that do not go together."""
    if mode not in FILTERS and mode not in COPIES:
        raise NotImplementedError(f"interpolate: mode={mode!r} is none of {', '.join([*COPIES, *FILTERS])}.")
    if mode in COPIES and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: "
            "linear | bilinear | bicubic | trilinear"
        )
    if (size is None) == (scale_factor is None):
        given = "either" if size is None else "only one of"
        raise ValueError(f"{given} size or scale_factor should be defined")
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias and mode not in ("bilinear", "bicubic", "lanczos"):
        raise ValueError("Anti-alias option is restricted to bilinear, bicubic, and lanczos modes")
    if mode == "lanczos" and align_corners:
        raise ValueError("Lanczos mode does not support align_corners=True")
    if mode == "lanczos" and not antialias:
        raise ValueError("Lanczos mode requires antialias=True")


def _check_rank(x: jax.Array, mode: str) -> None:
    rank = x.ndim - 2
    if not 1 <= rank <= 3:
        raise NotImplementedError(f"interpolate: x has shape {x.shape}; [N, *S, C] has 3 to 5 axes.")
    if RANKS.get(mode, rank) != rank:
        raise NotImplementedError(f"Got {x.ndim}D input, but {mode} mode needs {RANKS[mode] + 2}D input")


def _sizes(
    n: Sequence[int], size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    given: Any = scale_factor if size is None else size
    values = tuple(given) if isinstance(given, Sequence) else (given,) * len(n)
    if len(values) != len(n):
        raise ValueError(
            "Input and output must have the same number of spatial dimensions, but got input with spatial "
            f"dimensions of {tuple(n)} and {'scale_factor' if size is None else 'output size'} of {given}."
        )
    if size is None:
        return tuple(math.floor(i * f) for i, f in zip(n, values, strict=True)), values
    if not all(isinstance(o, int | np.integer) for o in values):
        raise TypeError(f"expected size to be one of int or a tuple of ints, but got {given}")
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
    # Sums of half-precision inputs are taken in float32, as torch does.
    wide = jnp.promote_types(x.dtype, jnp.float32) if mode in FILTERS else x.dtype
    y = x.astype(wide)
    for axis, (o, factor) in enumerate(zip(sizes, factors, strict=True), 1):
        n = x.shape[axis]
        if mode not in FILTERS:
            index = nearest(n, o, factor, mode == "nearest-exact", x.dtype)
            y = _resample(y, axis, Table(n, index[:, None], np.ones((o, 1))))
        elif n != o or (mode == "bicubic" and not antialias):  # torch copies axes that keep their size
            table = antialiased if antialias else taps
            y = _resample(y, axis, Table(n, *table(n, o, factor, align_corners, FILTERS[mode])))
    return y.astype(x.dtype)


class Table:
    """index and weights, both [o, t]: element i of o is the sum over t of weights[i] * x[index[i]]."""

    def __init__(self, n: int, index: np.ndarray, weights: np.ndarray):
        self.n, self.index, self.weights = n, index, weights

    def transpose(self) -> Table:
        """The table of the transposed sum, whose gaps have weight 0."""
        o = len(self.index)
        dense = np.zeros((self.n, o))
        np.add.at(dense, (self.index, np.arange(o)[:, None]), self.weights)
        longest = max((dense != 0).sum(1).max(initial=1), 1)
        index = np.argsort(dense == 0, axis=1, kind="stable")[:, :longest]
        return Table(o, index, np.take_along_axis(dense, index, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _resample(x: jax.Array, axis: int, table: Table) -> jax.Array:
    return _weighted(x, axis, table)


def _forward(x: jax.Array, axis: int, table: Table) -> tuple[jax.Array, None]:
    return _resample(x, axis, table), None


def _backward(axis: int, table: Table, _: None, dy: jax.Array) -> tuple[jax.Array]:
    return (_resample(dy, axis, table.transpose()),)


_resample.defvjp(_forward, _backward)


def _weighted(x: jax.Array, axis: int, table: Table) -> jax.Array:
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]

    def term(t: int) -> jax.Array:
        weights = table.weights[:, t]
        copied = jnp.take(x, table.index[:, t], axis)
        if np.all(weights == 1):
            return copied
        # A gap reads some element; it must not read its NaN.
        copied = jnp.where((weights != 0).reshape(shape), copied, 0) if np.any(weights == 0) else copied
        return copied * jnp.asarray(weights.reshape(shape), x.dtype)

    return functools.reduce(jnp.add, [term(t) for t in range(table.index.shape[1])])
