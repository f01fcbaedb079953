"""Functions whose values, or derivatives at 0, bounds or equal values, are torch's; jax.numpy's differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ...._arguments import INFINITE, Extended, Least, Size
from ... import functional as last

Axes = int | Sequence[int] | None


def abs(x: jax.Array) -> jax.Array:
    """|x|, with the derivative 0 at 0. torch counterpart: `torch.abs`; `jnp.abs` has 1."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return norm(jnp.stack([x.real, x.imag]), 2, 0)
    return x * jax.lax.stop_gradient(jnp.sign(x))


def atan2(x: jax.Array, other: jax.Array) -> jax.Array:
    """The angle of (other, x), with the derivative 0 at the origin. torch counterpart: `torch.atan2`."""
    origin = (x == 0) & (other == 0)
    return jnp.where(
        origin, jax.lax.stop_gradient(jnp.arctan2(x, other)), jnp.arctan2(x, jnp.where(origin, 1, other))
    )


def clamp(x: jax.Array, min: ArrayLike | None = None, max: ArrayLike | None = None) -> jax.Array:
    """x between `min` and `max`, with the derivative 1 at both.

    >>> import jax
    >>> from jaxpar.nn.channels_first import functional as F
    >>> float(jax.grad(lambda x: F.clamp(x, 0.0, 1.0))(1.0))
    1.0

    torch counterpart: `torch.clamp`; the derivative of `jnp.clip` at a bound is 1/2.
    """
    if min is not None:
        x = jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def div(x: jax.Array, other: ArrayLike, *, rounding_mode: str | None = None) -> jax.Array:
    """X / other, rounded down ("floor") or towards 0 ("trunc"). torch counterpart: `torch.div`."""
    if rounding_mode is None:
        return x / other
    if rounding_mode == "floor":
        return jax.lax.stop_gradient(jnp.floor_divide(x, other))
    if jnp.issubdtype(jnp.result_type(x, other), jnp.integer):
        floor = jnp.floor_divide(x, other)
        return floor + ((floor < 0) & (floor * other != x))
    return jax.lax.stop_gradient(jnp.trunc(x / other))


def norm(x: jax.Array, p: Extended | str = "fro", dim: Axes = None, keepdim: bool = False) -> jax.Array:
    """The p-norm along `dim`, or of all elements, with the gradient 0 where it is 0.

    torch counterpart: `torch.norm`, `torch.linalg.vector_norm`; the gradient of `jnp.linalg.norm` is NaN.
    """
    axes = [*range(x.ndim)] if dim is None else [dim] if isinstance(dim, int) else [*dim]
    rows = jnp.moveaxis(x, axes, range(-len(axes), 0))
    rows = rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)
    sizes = last.pairwise_distance(rows, jnp.zeros((), x.dtype), 2 if p == "fro" else float(p), 0)
    return jnp.expand_dims(sizes, [axis % x.ndim for axis in axes]) if keepdim else sizes


def std(x: jax.Array, dim: Axes = None, *, correction: int = 1, keepdim: bool = False) -> jax.Array:
    """The standard deviation, with the gradient 0 where it is 0.

    torch counterpart: `torch.std`; the gradient of `jnp.std` is NaN there.
    """
    axes = dim if dim is None or isinstance(dim, int) else tuple(dim)
    variance = x.var(axes, ddof=correction, keepdims=keepdim)
    safe = jnp.where(variance == 0, 1, variance)
    return jnp.where(variance == 0, 0, jnp.sqrt(safe))


def cdist(
    x1: jax.Array, x2: jax.Array, p: Annotated[float, Least(0, RuntimeError), INFINITE] = 2.0
) -> jax.Array:
    """The distances of all pairs of rows, with the gradient 0 at 0. torch counterpart: `torch.cdist`."""
    return last.pairwise_distance(x1[..., :, None, :], x2[..., None, :, :], p, 0)


def celu(x: jax.Array, alpha: float = 1.0) -> jax.Array:
    """x, or alpha (e^(x / alpha) - 1) below 0. torch counterpart: `F.celu`."""
    negative = jnp.where(x > 0, 0, x)
    value = alpha * jnp.expm1(negative / alpha)
    # torch's derivative has alpha in float32, whatever x is.
    derived = alpha * jnp.expm1(negative * (1 / float(np.float32(alpha))))
    return jnp.where(x > 0, x, derived + jax.lax.stop_gradient(value - derived))


def digamma(x: jax.Array) -> jax.Array:
    """The derivative of log(gamma(x)), with torch's derivative. torch counterpart: `torch.digamma`.

    torch ends the series of that derivative early, which leaves an error of up to 5e-10.
    """
    return _digamma(x)


@jax.custom_jvp
def _digamma(x: jax.Array) -> jax.Array:
    return jax.lax.digamma(x)


@_digamma.defjvp
def _digamma_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # aten/src/ATen/native/Math.h, trigamma
    (x,), (tangent,) = primals, tangents
    is_reflected = x < 0.5
    shifted = jnp.where(is_reflected, 1 - x, x)
    series = sum(1 / (shifted + count) ** 2 for count in range(6))
    shifted = shifted + 6
    square = 1 / shifted**2
    series += (1 + 1 / (2 * shifted) + square * (1 / 6 - square * (1 / 30 - square / 42))) / shifted
    reflected = (jnp.pi / jnp.sin(jnp.pi * jnp.where(is_reflected, x, 0.5))) ** 2 - series
    return _digamma(x), jnp.where(is_reflected, reflected, series) * tangent


def hardsigmoid(x: jax.Array) -> jax.Array:
    """x / 6 + 1/2 between 0 and 1. torch counterpart: `F.hardsigmoid`."""
    inner = last.hardtanh(x + 3, 0, 6)
    # torch's derivative is 1/6 in float32, whatever x is.
    derived = inner * float(np.float32(1 / 6))
    return derived + jax.lax.stop_gradient(inner / 6 - derived)


def pow(x: ArrayLike, exponent: ArrayLike) -> jax.Array:
    """x to the power of `exponent`, for integers with negative exponents rounded towards 0.

    torch counterpart: `torch.pow`; JAX's result for them is not defined.
    """
    if not jnp.issubdtype(jnp.result_type(x, exponent), jnp.integer):
        return jnp.power(x, exponent)
    power = jnp.power(x, jnp.abs(exponent))
    return jnp.where((jnp.asarray(exponent) < 0) & (jnp.abs(x) != 1), 0, power)


def scatter(x: jax.Array, dim: int, index: jax.Array, src: ArrayLike) -> jax.Array:
    """x with elements of `src` at the positions `index` along `dim`. torch counterpart: `torch.scatter`."""
    return _at(x, dim, index).set(_sources(src, index))


def scatter_add(x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """x plus the elements of `src` at the positions `index`. torch counterpart: `torch.scatter_add`."""
    return _at(x, dim, index).add(_sources(src, index))


def scatter_reduce(
    x: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, include_self: bool = True
) -> jax.Array:
    """x reduced with the elements of `src` at the positions `index`, by "sum", "mean", "amax" or "amin".

    Equal largest values share the gradient, as in torch. Elements that no index names stay as they are.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn.channels_first import functional as F
    >>> index, values = jnp.array([0, 0, 2]), jnp.array([1.0, 3.0, 5.0])
    >>> F.scatter_reduce(jnp.zeros(3), 0, index, values, "mean", include_self=False).tolist()
    [2.0, 0.0, 5.0]

    torch counterpart: `torch.scatter_reduce`; its "prod" is refused.
    """
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise ValueError(
            f"jaxpar.nn.functional.scatter_reduce: reduce={reduce!r}; choose sum, mean, amax or amin."
        )
    start = {"amax": -jnp.inf, "amin": jnp.inf}.get(reduce, 0)
    if start and not jnp.issubdtype(x.dtype, jnp.inexact):
        limits = jnp.iinfo(x.dtype)
        start = limits.min if reduce == "amax" else limits.max
    base = x if include_self else scatter(x, dim, index, start)
    if reduce == "sum":
        return scatter_add(base, dim, index, src)
    ones = jnp.ones(index.shape, x.dtype)
    if reduce == "mean":
        present = jnp.ones_like(x)
        counts = scatter_add(present if include_self else scatter(present, dim, index, 0), dim, index, ones)
        total = scatter_add(base, dim, index, src)
        return total / counts if jnp.issubdtype(x.dtype, jnp.inexact) else total // counts.astype(x.dtype)
    at, sources = _at(base, dim, index), _sources(src, index)
    largest = at.max(sources) if reduce == "amax" else at.min(sources)
    return _shared(x, base, largest, dim, index, sources) if jnp.issubdtype(x.dtype, jnp.inexact) else largest


def _shared(
    x: jax.Array, base: jax.Array, largest: jax.Array, dim: int, index: jax.Array, src: Any
) -> jax.Array:
    """Return `largest`, whose gradient is divided among the equal elements of x and `src`."""
    largest = jax.lax.stop_gradient(largest)
    of_self = x == largest  # counted even where torch does not include it
    of_src = src == _at(largest, dim, index).get()
    counts = scatter_add(of_self.astype(x.dtype), dim, index, of_src.astype(x.dtype))
    included = jnp.where(of_self & jnp.isfinite(base), base, 0)  # not finite: where x is not included
    parts = scatter_add(included, dim, index, jnp.where(of_src, src, 0))
    derived = parts / jnp.where(counts == 0, 1, counts)
    finite = jnp.isfinite(largest)
    return jnp.where(finite, largest + (derived - jax.lax.stop_gradient(derived)), largest)


def _at(x: jax.Array, dim: int, index: jax.Array) -> Any:
    # torch's index may be shorter than x along the other axes.
    positions = list(jnp.indices(index.shape, sparse=True))
    positions[dim] = index
    return x.at[tuple(positions)]


def _sources(src: ArrayLike, index: jax.Array) -> ArrayLike:
    return src[tuple(map(slice, index.shape))] if isinstance(src, jax.Array) and src.ndim else src


def affine_grid(theta: jax.Array, size: Sequence[int], align_corners: bool | None = None) -> jax.Array:
    """`jaxpar.nn.functional.affine_grid` for a `size` [N, C, *S]. torch counterpart: `F.affine_grid`."""
    return last.affine_grid(theta, (size[0], *size[2:], size[1]), align_corners)


def linspace(start: ArrayLike, end: ArrayLike, steps: Size, *, dtype: Any = None) -> jax.Array:
    """`steps` values from `start` to `end` at equal distances; in float32 each has torch's last bit.

    torch counterpart: `torch.linspace`. `jnp.linspace` rounds otherwise, and `x.item()` of a value then gives
    a rate of dropout with another eighth digit. Traced bounds take `jnp.linspace`.

    >>> from jaxpar.nn.channels_first import functional as F
    >>> [round(x.item(), 3) for x in F.linspace(0, 0.3, 4)]
    [0.0, 0.1, 0.2, 0.3]
    """
    float_type = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
    in_numpy = float_type.name in ("float32", "float64") and steps > 1
    if not in_numpy or any(isinstance(x, jax.core.Tracer) for x in (start, end)):
        return jnp.linspace(start, end, steps, dtype=float_type)
    first, last_value = float_type.type(start), float_type.type(end)
    step = (last_value - first) / float_type.type(steps - 1)
    # torch counts from the nearer end, and rounds once (a fused multiply-add), which the wider type does.
    counts = np.arange(steps, dtype=np.longdouble)
    from_start, from_end = counts * step + first, last_value - counts[::-1] * step
    return jnp.asarray(np.where(np.arange(steps) < steps // 2, from_start, from_end).astype(float_type))
