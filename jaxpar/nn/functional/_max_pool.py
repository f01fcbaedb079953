"""max_pool: the largest element of each window, and its position. max_unpool: the way back.

Each axis is searched in steps that keep the larger of two candidates, so ties go to the first element, as in
torch, in the value, the index and the gradient. XLA's own pool has no gradient with dilation and no indices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._window import Ints, Window, check_counts, pool_windows


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
      kernel_size, stride, padding, dilation, ceil_mode: as for `jaxpar.nn.MaxPool`. Padding is never the
        largest.
      return_indices: return the positions as well: integers that number the elements of all spatial axes in
        one row, as torch does.

    Returns: [..., *T, C], and the positions of the same shape. Raises: ValueError: padding above half of the
    kernel size; an axis shorter than its window.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.max_pool(jnp.arange(4.0).reshape(1, 4, 1), 2).ravel().tolist()
    [1.0, 3.0]

    torch counterpart: `torch.nn.functional.max_pool1d/2d/3d`; of equal elements the first gets the gradient,
    NaN wins. Source: ATen/native/cpu/MaxPoolKernel.cpp.
    """
    over = pool_windows("max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    check_counts("max_pool", x, over)
    y, indices = _max_pool(x, over, return_indices)
    return (y, indices) if return_indices else y


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _max_pool(
    x: jax.Array, over: tuple[Window, ...], return_indices: bool
) -> tuple[jax.Array, jax.Array | None]:
    arrays = [x, positions(x, len(over))] if return_indices else [x]
    # Last axis first: then the first of equal elements in memory order wins, as in torch's nested loops.
    for axis, window in reversed(list(enumerate(over, x.ndim - 1 - len(over)))):
        arrays = _pool_axis(arrays, axis, window)
    return arrays[0], arrays[1] if return_indices else None


def positions(x: jax.Array, rank: int) -> jax.Array:
    """For each element of x [..., *S, C] its number among the elements of S."""
    sizes = x.shape[-1 - rank : -1]
    numbers = jnp.arange(np.prod(sizes), dtype=int).reshape(*sizes, 1)
    return jnp.broadcast_to(numbers, x.shape)


def _pool_axis(arrays: Sequence[jax.Array], axis: int, window: Window) -> list[jax.Array]:
    n = arrays[0].shape[axis]
    padded = [jax.lax.pad(a, _lowest(a.dtype), window.edges(a, axis)) for a in arrays]
    # Two windows of the largest power of two within the size cover it: about log2(size) comparisons.
    half = 1 << (window.size.bit_length() - 1)
    last = (window.count(n) - 1) * window.stride
    halves = running_max(padded, axis, half, window.dilation, window.padding)

    def at(start: int) -> list[jax.Array]:
        return [jax.lax.slice_in_dim(a, start, start + last + 1, window.stride, axis) for a in halves]

    if half == window.size:
        return at(0)
    # The first half may contain only padding, at the start; then the second must win even a tie at -inf.
    empty = np.arange(window.count(n)) * window.stride + (half - 1) * window.dilation < window.padding
    return larger(at(0), at((window.size - half) * window.dilation), axis, empty)


def running_max(
    arrays: Sequence[jax.Array], axis: int, size: int, dilation: int = 1, padding: int = 0
) -> Sequence[jax.Array]:
    """Return the first maximum of the `size` elements from each position on; size is a power of 2."""
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
    """Select `second` where its leading array is larger or NaN, else `first`, for all arrays alike."""
    # `empty` is where the first holds nothing but padding. Padding is -inf and must not win a tie with an
    # element that is -inf itself, since its position would be outside of x. x != x holds for NaN only: NaN
    # wins, and `>` is strict so that the first of equal elements stays.
    replace = (second[0] > first[0]) | (second[0] != second[0])
    if empty is not None and empty.any():
        replace |= np.expand_dims(empty, list(range(1, first[0].ndim - axis)))
    return [jnp.where(replace, new, old) for new, old in zip(second, first, strict=True)]


def _lowest(dtype: jnp.dtype) -> np.ndarray:
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.array(-np.inf, dtype)
    if dtype == jnp.bool_:
        raise NotImplementedError("max_pool: not implemented for bool; x.astype(jnp.float32) has numbers.")
    return np.array(jnp.iinfo(dtype).min, dtype)


def max_unpool(
    x: jax.Array,
    indices: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> jax.Array:
    """Scatter x to the positions `indices`, with 0 everywhere else, [..., *S, C].

    Args:
      x: [..., *T, C]. With plain numbers as options it is [N, *T, C].
      indices: from `max_pool(..., return_indices=True)`, of x's shape. Where two windows found the same
        element, each of them gets the gradient, as in torch. An index outside of the output raises in a host
        array, as in torch, and is dropped in an array of JAX.
      kernel_size, stride, padding: as in the pool.
      output_size: the spatial sizes of the result, if not (t - 1) stride - 2 padding + kernel_size.

    Raises: ValueError: shapes that differ; an output size a stride or more away from the default one.
    RuntimeError: see indices.

    torch counterpart: `torch.nn.functional.max_unpool1d/2d/3d`. Source: torch/nn/functional.py,
    _unpool_output_size; ATen/native/cpu/MaxUnpoolKernel.cpp.
    """
    over = pool_windows("max_unpool", x, kernel_size, stride, padding, output_size=output_size)
    if indices.shape != x.shape:
        raise ValueError(
            "max_unpool: Expected shape of indices to be same as that of the input tensor "
            f"({x.shape}) but got indices tensor with shape: {indices.shape}."
        )
    sizes = _unpooled_sizes(x.shape[-1 - len(over) : -1], over, output_size)
    volume = math.prod(sizes)
    # Host arrays only: reading JAX's own arrays would wait for the device.
    if isinstance(indices, np.ndarray) and indices.size and (indices.min() < 0 or indices.max() >= volume):
        bad = indices[(indices < 0) | (indices >= volume)].flat[0]
        raise RuntimeError(
            f"max_unpool: Found an invalid max index: {bad} (output volumes are of size {volume})"
        )
    return _max_unpool(x, indices, sizes)


def _unpooled_sizes(
    sizes: Sequence[int], over: Sequence[Window], output_size: Sequence[int] | None
) -> tuple[int, ...]:
    default = [(t - 1) * w.stride - 2 * w.padding + w.size for t, w in zip(sizes, over, strict=True)]
    if output_size is None:
        return tuple(default)
    for d, (length, size, w) in enumerate(zip(output_size, default, over, strict=True)):
        if not size - w.stride < length < size + w.stride:
            raise ValueError(
                f'max_unpool: invalid output_size "{tuple(output_size)}" (dim {d} must be between '
                f"{size - w.stride} and {size + w.stride})."
            )
    return tuple(output_size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnums=(2,), inline=True)
def _max_unpool(x: jax.Array, indices: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    batch, C = x.shape[: -1 - len(sizes)], x.shape[-1]
    # JAX would count a negative index from the end.
    indices = jnp.where(indices < 0, math.prod(sizes), indices)
    values, positions = (a.reshape(math.prod(batch), -1, C) for a in (x, indices))
    empty = jnp.zeros((math.prod(batch), math.prod(sizes), C), x.dtype)
    # A scatter with set, not add: of two equal indices one value wins, as in torch.
    row, _, channel = jnp.indices(positions.shape, sparse=True)
    return empty.at[row, positions, channel].set(values, mode="drop").reshape(*batch, *sizes, C)


def _unpool_forward(x: jax.Array, indices: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return _max_unpool(x, indices, sizes), indices


def _unpool_backward(sizes: tuple[int, ...], indices: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    batch, C = indices.shape[: -1 - len(sizes)], indices.shape[-1]
    indices = jnp.where(indices < 0, math.prod(sizes), indices)
    # The derivative reads dy at every index, duplicates included, where JAX's own rule for set drops some.
    dy, positions = (a.reshape(math.prod(batch), -1, C) for a in (dy, indices))
    return jnp.take_along_axis(dy, positions, 1, mode="fill", fill_value=0).reshape(indices.shape), None


_max_unpool.defvjp(_unpool_forward, _unpool_backward)
