"""Functions of shapes, and prelu, pad and normalize, with torch's arguments and axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ...._arguments import AnyFloat, Extended, NonNegative, Size
from ... import functional as last
from ..axes import turned


def flatten(x: jax.Array, start_dim: int = 0, end_dim: int = -1) -> jax.Array:
    """Merge the axes from start_dim to end_dim. torch counterpart: `torch.flatten`."""
    start, end = (axis % max(x.ndim, 1) for axis in (start_dim, end_dim))
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def unflatten(x: jax.Array, dim: int, sizes: Sequence[int]) -> jax.Array:
    """Split the axis `dim` into several; one size may be -1. torch counterpart: `torch.unflatten`."""
    axis = range(x.ndim)[dim]
    product = math.prod(size for size in sizes if size != -1)
    full = [x.shape[axis] // product if size == -1 else size for size in sizes]
    return x.reshape(*x.shape[:axis], *full, *x.shape[axis + 1 :])


def split(x: jax.Array, split_size_or_sections: Size | Sequence[Size], dim: int = 0) -> tuple[jax.Array, ...]:
    """Split x into pieces of this length, or of these lengths.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn.channels_first import functional as F
    >>> [part.shape for part in F.split(jnp.ones((5, 2)), 2)]
    [(2, 2), (2, 2), (1, 2)]

    torch counterpart: `torch.split`.
    """
    length = x.shape[dim]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        return tuple(jnp.split(x, list(range(size, length, size)), dim))
    sections = list(split_size_or_sections)
    if sum(sections) != length:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={sections}"
        )
    return tuple(jnp.split(x, list(itertools.accumulate(sections[:-1])), dim))


def chunk(x: jax.Array, chunks: int, dim: int = 0) -> tuple[jax.Array, ...]:
    """Split x into at most `chunks` pieces; the last may be shorter. torch counterpart: `torch.chunk`."""
    if chunks < 1:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    return split(x, -(-x.shape[dim] // chunks) or 1, dim)


def expand(x: jax.Array, *sizes: int | Sequence[int]) -> jax.Array:
    """Repeat x along axes of length 1 and along new leading axes; -1 keeps a length.

    torch counterpart: `torch.Tensor.expand`.
    """
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    before = (1,) * (len(shape) - x.ndim)
    full = [length if size == -1 else size for size, length in zip(shape, before + x.shape, strict=True)]
    return jnp.broadcast_to(x, full)


def squeeze(x: jax.Array, dim: int | Sequence[int] | None = None) -> jax.Array:
    """Remove the axes `dim`, or all axes, that have length 1. torch counterpart: `torch.squeeze`."""
    axes = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(axis for axis in axes if x.shape[axis] == 1))


def sliding_windows(x: jax.Array, dim: int, size: int, step: int) -> jax.Array:
    """Return the windows of `size` along the axis `dim`, `step` apart, each as the last axis.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn.channels_first import functional as F
    >>> F.sliding_windows(jnp.ones((5, 3)), 0, 2, 1).shape
    (4, 3, 2)

    torch counterpart: `torch.Tensor.unfold`.
    """
    axis = range(x.ndim)[dim]
    if not 0 <= size <= x.shape[axis] or step < 1:
        raise RuntimeError(
            f"sliding_windows: size {size}, step {step}, along axis {dim} with {x.shape[axis]} elements"
        )
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    return jnp.moveaxis(jnp.take(x, starts[:, None] + jnp.arange(size), axis), axis + 1, -1)


def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`jaxpar.nn.functional.prelu` of [N, C, *S]. torch counterpart: `F.prelu`."""
    return turned(lambda rows: last.prelu(rows, weight), x, "prelu") if x.ndim > 1 else last.prelu(x, weight)


def pad(x: jax.Array, pad: Sequence[int], mode: str = "constant", value: AnyFloat | None = None) -> jax.Array:
    """`jaxpar.nn.functional.pad` of the last axes of x, the last one first. torch counterpart: `F.pad`."""
    return last.pad(jnp.expand_dims(x, -1), pad, mode, value)[..., 0]


def normalize(x: jax.Array, p: Extended = 2.0, dim: int = 1, eps: NonNegative = 1e-12) -> jax.Array:
    """Divide x by its p-norm along `dim`, axis 1 by default. torch counterpart: `F.normalize`."""
    return last.normalize(x, p, dim, eps)
