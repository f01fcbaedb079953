"""Norms, distances and cosines, and the losses built on them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._arguments import Extended, NonNegative
from ._cross_entropy import SMALLEST
from ._reduction import absolute, clamp_min, reduce, targets


def cosine_similarity(x1: jax.Array, x2: jax.Array, dim: int = 1, eps: NonNegative = 1e-8) -> jax.Array:
    """The product of x1 / |x1| and x2 / |x2| along `dim`, norms clamped to eps.

    Args:
      x1, x2: shapes that broadcast. dim: the axis of the vectors, torch's default; -1 for data with channels
        last.

    Returns: The broadcast shape without `dim`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.cosine_similarity(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 2.0]])).tolist()
    [0.0]

    torch counterpart: `torch.nn.functional.cosine_similarity`; as there, the gradient ignores eps, and the
    norm of a zero vector has the gradient 0. Source: aten/src/ATen/native/Distance.cpp.
    """
    x1, x2 = jnp.broadcast_arrays(x1, x2)
    return (_unit(x1, dim, eps) * _unit(x2, dim, eps)).sum(dim)


def _unit(x: jax.Array, axis: int, eps: NonNegative) -> jax.Array:
    # torch clamps the norm outside of autograd: the value uses the clamped norm, the derivative the norm
    # itself.
    n = norm(x, 2, axis, keepdims=True)
    return x / (n + jax.lax.stop_gradient(clamp_min(n, eps) - n))


def normalize(x: jax.Array, p: Extended = 2.0, dim: int = 1, eps: NonNegative = 1e-12) -> jax.Array:
    """x divided by its p-norm along an axis, the norm clamped to eps.

    Args:
      p: of the norm, `float("inf")` too.
      dim: the axis of the vectors, torch's default; -1 for data with channels last.
      eps: the lower bound of the norm.

    Returns: x's shape. The gradient of a vector of zeros is the incoming one divided by eps, as in torch;
    with `jnp.linalg.norm` it would be NaN.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.normalize(jnp.array([[0.0, 4.0]])).tolist()
    [[0.0, 1.0]]

    torch counterpart: `torch.nn.functional.normalize`.
    """
    return x / clamp_min(norm(x, p, dim, keepdims=True), eps)


def pairwise_distance(
    x1: jax.Array, x2: jax.Array, p: Extended = 2.0, eps: NonNegative = 1e-6, keepdim: bool = False
) -> jax.Array:
    """The p-norm of x1 - x2 + eps over the last axis.

    Args:
      x1, x2: shapes that broadcast, [..., D]. p: of the norm, `float("inf")` too.

    Returns: [...], or [..., 1] with `keepdim`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.pairwise_distance(jnp.array([[0.0, 0.0]]), jnp.array([[3.0, 4.0]])).round(3).tolist()
    [5.0]

    torch counterpart: `torch.nn.functional.pairwise_distance`. Source: aten/src/ATen/native/Distance.cpp.
    """
    return norm(x1 - x2 + eps, p, -1, keepdims=keepdim)


def norm(x: jax.Array, p: Extended, axis: int, *, keepdims: bool = False) -> jax.Array:
    """(sum |x|^p)^(1/p), with the gradient 0 where it is 0, as torch.linalg.vector_norm."""
    size = absolute(x)
    if p == float("inf"):
        return size.max(axis, keepdims=keepdims)
    if p == 0:
        return (x != 0).sum(axis, keepdims=keepdims).astype(x.dtype)
    if p == 1:
        return size.sum(axis, keepdims=keepdims)
    # The inner `where` keeps the derivative of the power finite at 0, the outer one makes it 0.
    powers = jnp.square(x) if p == 2 else jnp.where(x == 0, 0, jnp.where(x == 0, 1, size) ** p)
    total = powers.sum(axis, keepdims=keepdims)
    # The root's derivative at 0 is infinite; torch defines the gradient as 0 there.
    safe = jnp.where(total == 0, 1, total)
    return jnp.where(total == 0, 0, jnp.sqrt(safe) if p == 2 else safe ** (1 / p))


def cosine_embedding_loss(
    input1: jax.Array, input2: jax.Array, target: ArrayLike, margin: float = 0.0, *, reduction: str = "mean"
) -> jax.Array:
    """1 - cos for target 1, max(0, cos - margin) for target -1, and 0 for others.

    Args:
      input1, input2: [B, D] or [D]. target: [B] or [].
      reduction: "none", "mean" or "sum".

    Raises: RuntimeError: other shapes, with torch's message.

    torch counterpart: `torch.nn.functional.cosine_embedding_loss`. Its cosine adds 1e-12 to the squares,
    which `cosine_similarity` does not. Source: aten/src/ATen/native/Loss.cpp.
    """
    target = targets(target)
    if target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if input1.ndim != target.ndim + 1:
        raise RuntimeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with "
            f"sizes {input1.shape} and {input2.shape}."
        )
    first, second = (jnp.square(x).sum(-1) + SMALLEST for x in (input1, input2))
    cos = (input1 * input2).sum(-1) / jnp.sqrt(first * second)
    zero = jnp.zeros_like(cos)
    loss = jnp.where(target == 1, 1 - cos, zero) + jnp.where(target == -1, clamp_min(cos - margin, 0), zero)
    return reduce(loss, reduction)


def triplet_margin_loss(
    anchor: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    margin: float = 1.0,
    p: Extended = 2,
    eps: NonNegative = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> jax.Array:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d being `pairwise_distance`.

    Args:
      anchor, positive, negative: [..., D], of equally many axes.
      margin: positive. p, eps: of the distance.
      swap: whether d(positive, negative) counts where it is below d(anchor, negative).
      reduction: "none", "mean" or "sum".

    Raises: ValueError: a margin that is not positive. RuntimeError: different numbers of axes.

    torch counterpart: `torch.nn.functional.triplet_margin_loss`. Source: aten/src/ATen/native/Loss.cpp.
    """
    distance = functools.partial(pairwise_distance, p=p, eps=eps)
    triplet = anchor, positive, negative
    return triplet_margin_with_distance_loss(
        *triplet, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    *,
    distance_function: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> jax.Array:
    """`triplet_margin_loss` with a distance of two arrays that is passed; `pairwise_distance` without one.

    torch counterpart: `torch.nn.functional.triplet_margin_with_distance_loss`.
    """
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            f"The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = jnp.minimum(far, distance(positive, negative))
    return reduce(clamp_min(margin + near - far, 0), reduction)
