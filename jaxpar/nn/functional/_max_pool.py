"""max_pool: the largest element of each window, and where it was.

The windows are searched one spatial axis after the other, the last axis first, by a chain of `where`.
So the first of several equal elements is taken, as in torch, in the value, in the index and in the
gradient, which is a chain of `where` again. XLA's own pool is as exact but has no gradient with
dilation, no indices, and a scatter for a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ._window import Ints, Window, check_counts, elements, pool_windows, spatial


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
    columns = zip(*(elements(a, axis, window, lowest(a.dtype)) for a in arrays), strict=True)
    # Windows that begin in the padding: their first element that exists, so that it is never padding
    # that is found, even where all elements are -inf.
    begins = np.arange(window.count(arrays[0].shape[axis])) * window.stride - window.padding
    first = np.maximum(-(begins // window.dilation), 0)
    return first_largest(list(columns), np.expand_dims(first, list(range(1, arrays[0].ndim - axis))))


def first_largest(candidates: Sequence[Sequence[jax.Array]], first: np.ndarray) -> list[jax.Array]:
    """The first of the largest of candidates[first:], by the first array of each, and its other arrays."""
    best = list(candidates[0])
    for j, here in enumerate(candidates[1:], 1):
        found = (here[0] > best[0]) | (here[0] != here[0])
        if np.any(first == j):
            found |= first == j
        best = [jnp.where(found, new, old) for new, old in zip(here, best, strict=True)]
    return best


def lowest(dtype: jnp.dtype) -> np.ndarray:
    """What no element is below."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.array(-np.inf, dtype)
    return np.array(jnp.iinfo(dtype).min, dtype)
