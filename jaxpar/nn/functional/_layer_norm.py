"""Statistics over the last axes of each row: layer_norm, rms_norm and local_response_norm."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._arguments import NonNegative
from ..._statistics.moments import moments, standardize, widened
from ..._typing import Shape
from .._array_types import Floating
from .._checks import check_size, checked_shape


def layer_norm(
    x: jax.Array,
    normalized_shape: int | Sequence[int],
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: NonNegative = 1e-5,
) -> jax.Array:
    """(x - mean) / sqrt(var + eps) * scale + bias over the last axes.

    Args:
      x: [..., *normalized_shape].
      normalized_shape: the lengths of the last axes, or of the last one.
      scale, bias: [*normalized_shape]; None for 1 and for 0.
      eps: added to the variance under the root.

    Raises: RuntimeError: an empty `normalized_shape`, or an x whose last axes differ from it. TypeError:
    integers.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.layer_norm(jnp.array([[1.0, 3.0]]), 2).round(3).tolist()
    [[-1.0, 1.0]]

    torch counterpart: `torch.nn.functional.layer_norm`. Source: ATen/native/layer_norm.cpp.
    """
    axes = _last_axes(x, checked_shape(normalized_shape), scale, bias)
    y = _standardized(widened("layer_norm", x), axes, eps)
    y = y if scale is None else y * scale
    return (y if bias is None else y + bias).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _standardized(x: jax.Array, axes: tuple[int, ...], eps: NonNegative) -> jax.Array:
    mean, var = moments(x, axes)
    return standardize(x, mean, var, None, None, eps)


@_standardized.defjvp
def _standardized_jvp(axes: tuple[int, ...], eps: NonNegative, primals: Any, tangents: Any) -> Any:
    # Written in terms of the result, so that its transpose takes both sums in one pass over the data.
    (x,), (dx,) = primals, tangents
    mean, var = moments(x, axes)
    factor = jax.lax.rsqrt(var + eps)
    y = (x - mean) * factor
    along = (y * dx).mean(axes, keepdims=True)
    return y, factor * (dx - dx.mean(axes, keepdims=True) - y * along)


def rms_norm(
    x: jax.Array,
    normalized_shape: int | Sequence[int],
    scale: jax.Array | None = None,
    eps: NonNegative | None = None,
) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last axes.

    Args:
      x, normalized_shape, scale: as in `layer_norm`.
      eps: if None, the machine epsilon of the type of the computation, float64 for float64 and float32 for
        all others.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.rms_norm(jnp.array([[3.0, 3.0]]), 2).round(3).tolist()
    [[1.0, 1.0]]

    torch counterpart: `torch.nn.functional.rms_norm`. Source: ATen/native/layer_norm.cpp.
    """
    axes = _last_axes(x, checked_shape(normalized_shape), scale)
    wide = widened("rms_norm", x)
    eps = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    y = wide * jax.lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + eps)
    return (y if scale is None else y * scale).astype(x.dtype)


def _last_axes(x: jax.Array, shape: Shape, *parameters: jax.Array | None) -> tuple[int, ...]:
    wrong = [p.shape for p in parameters if p is not None and p.shape != shape]
    if wrong:
        raise RuntimeError(f"Expected scale and bias of shape {list(shape)}, but got {list(wrong[0])}")
    if x.shape[-len(shape) :] != shape:
        ending = "".join(f", {n}" for n in shape)
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*{ending}], but got input of "
            f"size{list(x.shape)}"
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def local_response_norm(
    x: Floating, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> jax.Array:
    """x / (k + alpha * mean of x^2 over `size` neighbouring channels) ** beta.

    Args:
      x: [N, ..., C], at least three axes.
      size: of the neighbourhood: size // 2 channels before, the channel itself, and (size - 1) // 2 after.
        Channels beyond the ends count as zeros.
      alpha, beta, k: as in the formula.

    Raises: RuntimeError: size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.functional.local_response_norm`. Source: torch/nn/functional.py. The paper
    (Krizhevsky et al. 2012, 3.3) takes the sum, not the mean.
    """
    check_size(size)
    if x.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {x.ndim} dimensions)")
    C = x.shape[-1]
    borders = [(0, 0)] * (x.ndim - 1) + [(size // 2, (size - 1) // 2)]
    squares = jnp.pad(jnp.square(x), borders)
    total = sum(squares[..., i : i + C] for i in range(size))
    return x / (total / size * alpha + k) ** beta
