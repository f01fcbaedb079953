"""max_pool: the largest element of each window, and where it was.

The windows are searched one spatial axis after the other, the last axis first, in steps that take the
larger of two. So the first of several equal elements is taken, as in torch, in the value, in the index
and in the gradient, which goes the same steps back. XLA's own pool is as exact, but it has no gradient
with dilation, no indices, and a scatter for a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ._window import Ints, Window, check_counts, pool_windows, spatial


def max_pool(
    x: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """The largest element of each window.

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      kernel_size, stride, padding, dilation: a number, or one for each spatial axis; `stride` is
        `kernel_size` if left out. Padding never is the largest.
      ceil_mode: whether a last window may reach over the end.
      return_indices: return the positions as well: integers that number the elements of the spatial
        axes in one row, as torch does.

    Returns:
      [..., *T, C], and the positions of the same shape.

    Raises:
      ValueError: padding above half of the kernel size; an axis shorter than its window.

    torch counterpart: `torch.nn.functional.max_pool1d/2d/3d`; the first of equal elements has the
    gradient, NaN wins. Source: ATen/native/cpu/MaxPoolKernel.cpp.
    """
    rank = spatial("max_pool", x, kernel_size, stride, padding, dilation)
    over = pool_windows("max_pool", rank, kernel_size, stride, padding, dilation, ceil_mode)
    check_counts("max_pool", x, over)
    y, indices = _max_pool(x, over, return_indices)
    return (y, indices) if return_indices else y


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _max_pool(
    x: jax.Array, over: tuple[Window, ...], return_indices: bool
) -> tuple[jax.Array, jax.Array | None]:
    arrays = [x, positions(x, len(over))] if return_indices else [x]
    for axis, window in reversed(list(enumerate(over, x.ndim - 1 - len(over)))):
        arrays = _along(arrays, axis, window)
    return arrays[0], arrays[1] if return_indices else None


def positions(x: jax.Array, rank: int) -> jax.Array:
    """For every element of x [..., *S, C] its number among the elements of S."""
    sizes = x.shape[-1 - rank : -1]
    numbers = jnp.arange(np.prod(sizes), dtype=int).reshape(*sizes, 1)
    return jnp.broadcast_to(numbers, x.shape)


def _along(arrays: Sequence[jax.Array], axis: int, window: Window) -> list[jax.Array]:
    n = arrays[0].shape[axis]
    edges = [(0, 0, 0)] * arrays[0].ndim
    edges[axis] = (window.padding, window.end(n), 0)
    padded = [jax.lax.pad(a, lowest(a.dtype), edges) for a in arrays]
    half = 1 << (window.size.bit_length() - 1)
    last = (window.count(n) - 1) * window.stride

    def at(start: int) -> list[jax.Array]:
        return [jax.lax.slice_in_dim(a, start, start + last + 1, window.stride, axis) for a in halves]

    halves = doubled(padded, axis, half, window.dilation, window.padding)
    if half == window.size:
        return at(0)
    empty = np.arange(window.count(n)) * window.stride + (half - 1) * window.dilation < window.padding
    return larger(at(0), at((window.size - half) * window.dilation), axis, empty)


def doubled(
    arrays: Sequence[jax.Array], axis: int, size: int, dilation: int = 1, padding: int = 0
) -> Sequence[jax.Array]:
    """At every place the first largest of the `size` elements from there on, size being a power of 2.

    Two windows of j elements, the second right behind the first, are one of 2 j. Any window then is
    two of these, which may overlap.
    """
    width = 1
    while width < size:
        n = arrays[0].shape[axis] - width * dilation
        first = [jax.lax.slice_in_dim(a, 0, n, axis=axis) for a in arrays]
        second = [jax.lax.slice_in_dim(a, width * dilation, None, axis=axis) for a in arrays]
        arrays = larger(first, second, axis, np.arange(n) + (width - 1) * dilation < padding)
        width *= 2
    return arrays


def larger(
    first: Sequence[jax.Array], second: Sequence[jax.Array], axis: int, empty: np.ndarray | None = None
) -> list[jax.Array]:
    """The second where its first array is larger, or NaN; else the first.

    empty: where the first is all padding. It may be no smaller than the second, if that is -inf, but
    padding is never found.
    """
    found = (second[0] > first[0]) | (second[0] != second[0])
    if empty is not None and empty.any():
        found |= np.expand_dims(empty, list(range(1, first[0].ndim - axis)))
    return [jnp.where(found, new, old) for new, old in zip(second, first, strict=True)]


def lowest(dtype: jnp.dtype) -> np.ndarray:
    """What no element is below."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.array(-np.inf, dtype)
    return np.array(jnp.iinfo(dtype).min, dtype)
