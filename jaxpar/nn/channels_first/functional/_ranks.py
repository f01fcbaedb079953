"""max, sort, topk and others that return values and their indices; each value's gradient has one element."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ...._arguments import Least


class Ranked(NamedTuple):
    """Values and their indices along an axis."""

    values: jax.Array
    indices: jax.Array


class Extremes(NamedTuple):
    """The least and the largest values."""

    min: jax.Array
    max: jax.Array


def max(x: jax.Array, dim: int, keepdim: bool = False) -> Ranked:
    """The largest values along `dim`, and where the first of them are.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn.channels_first import functional as F
    >>> values, indices = F.max(jnp.array([[1.0, 3.0], [2.0, 2.0]]), 1)
    >>> values.tolist(), indices.tolist()
    ([3.0, 2.0], [1, 0])

    torch counterpart: `torch.max`; the gradient of `jnp.max` is divided among equal values.
    """
    return _taken(x, jnp.argmax(x, dim, keepdims=True), dim, keepdim)


def min(x: jax.Array, dim: int, keepdim: bool = False) -> Ranked:
    """The least values along `dim`, and where the first of them are. torch counterpart: `torch.min`."""
    return _taken(x, jnp.argmin(x, dim, keepdims=True), dim, keepdim)


def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> Ranked:
    """The values in order, equal ones in their own. torch counterpart: `torch.sort`, with stable=True."""
    return _taken(x, jnp.argsort(x, dim, descending=descending), dim, True)


def topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    """The k largest, or least, values in order, the first ones of equal values.

    torch counterpart: `torch.topk`, which does not define which of equal values it takes.
    """
    rows = jnp.moveaxis(x, dim, -1)
    _, indices = jax.lax.top_k(rows if largest else -rows, k)
    return _taken(x, jnp.moveaxis(indices, -1, dim), dim, True)


def kthvalue(
    x: jax.Array, k: Annotated[int, Least(1, RuntimeError)], dim: int = -1, keepdim: bool = False
) -> Ranked:
    """The k-th least values along `dim`, from 1. torch counterpart: `torch.kthvalue`."""
    indices = jax.lax.slice_in_dim(jnp.argsort(x, dim), k - 1, k, axis=dim)
    return _taken(x, indices, dim, keepdim)


def median(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median, of all or along `dim` with its indices. torch counterpart: `torch.median`."""
    if dim is not None:
        return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    equal = x == jnp.sort(x.reshape(-1))[(x.size - 1) // 2]
    return jnp.where(equal, x, 0).sum() / equal.sum()


def cummax(x: jax.Array, dim: int) -> Ranked:
    """The largest values so far, and where the last of them are. torch counterpart: `torch.cummax`."""
    return _so_far(x, jax.lax.cummax(x, dim % x.ndim), dim)


def cummin(x: jax.Array, dim: int) -> Ranked:
    """The least values so far, and where the last of them are. torch counterpart: `torch.cummin`."""
    return _so_far(x, jax.lax.cummin(x, dim % x.ndim), dim)


def aminmax(x: jax.Array, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """The least and the largest values. torch counterpart: `torch.aminmax`."""
    return Extremes(x.min(dim, keepdims=keepdim), x.max(dim, keepdims=keepdim))


def searchsorted(
    sorted_sequence: jax.Array,
    values: ArrayLike,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """Where values would be inserted into sorted rows. torch counterpart: `torch.searchsorted`."""
    side = side or ("right" if right else "left")
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    if sorted_sequence.ndim == 1:
        return jnp.searchsorted(sorted_sequence, values, side=side)
    return jax.vmap(lambda row, own_values: searchsorted(row, own_values, side=side))(sorted_sequence, values)


def _taken(x: jax.Array, indices: jax.Array, dim: int, keepdim: bool) -> Ranked:
    values = jnp.take_along_axis(x, indices, dim)
    return Ranked(values, indices) if keepdim else Ranked(values.squeeze(dim), indices.squeeze(dim))


def _so_far(x: jax.Array, extremes: jax.Array, dim: int) -> Ranked:
    positions = jax.lax.broadcasted_iota(int, x.shape, dim % x.ndim)
    indices = jax.lax.cummax(jnp.where(x == extremes, positions, 0), dim % x.ndim)
    return _taken(x, indices, dim, True)
