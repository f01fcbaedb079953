"""max_unpool: the largest elements go back to where max_pool found them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ._window import Ints, Window, pool_windows, spatial


def max_unpool(
    x: jax.Array,
    indices: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> jax.Array:
    """Puts x where `indices` says, and 0 everywhere else.

    Args:
      x: [..., *T, C]. With plain numbers as options it is [N, *T, C].
      indices: as `max_pool(..., return_indices=True)` gives them, of x's shape. Where two windows
        found the same element, every one of them has the gradient, as in torch. An index outside of
        the output is dropped; torch raises.
      kernel_size, stride, padding: those of the pool.
      output_size: the spatial sizes of the result, if not (t - 1) stride - 2 padding + kernel_size.

    Returns:
      [..., *S, C].

    Raises:
      ValueError: shapes that differ; an output size that is a stride or more away from the usual one.

    torch counterpart: `torch.nn.functional.max_unpool1d/2d/3d`. Source: torch/nn/functional.py,
    _unpool_output_size; ATen/native/cpu/MaxUnpoolKernel.cpp.
    """
    rank = spatial("max_unpool", x, kernel_size, stride, padding, output_size)
    over = pool_windows("max_unpool", rank, kernel_size, stride, padding)
    if indices.shape != x.shape:
        raise ValueError(
            "max_unpool: Expected shape of indices to be same as that of the input tensor "
            f"({x.shape}) but got indices tensor with shape: {indices.shape}."
        )
    return _max_unpool(x, indices, _sizes(x.shape[-1 - rank : -1], over, output_size))


def _sizes(
    sizes: Sequence[int], over: Sequence[Window], output_size: Sequence[int] | None
) -> tuple[int, ...]:
    usual = [(t - 1) * w.stride - 2 * w.padding + w.size for t, w in zip(sizes, over, strict=True)]
    if output_size is None:
        return tuple(usual)
    for d, (asked, size, w) in enumerate(zip(output_size, usual, over, strict=True)):
        if not size - w.stride < asked < size + w.stride:
            raise ValueError(
                f'max_unpool: invalid output_size "{tuple(output_size)}" (dim {d} must be between '
                f"{size - w.stride} and {size + w.stride})."
            )
    return tuple(output_size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnums=(2,), inline=True)
def _max_unpool(x: jax.Array, indices: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    batch, C = x.shape[: -1 - len(sizes)], x.shape[-1]
    values, places = (a.reshape(math.prod(batch), -1, C) for a in (x, indices))
    empty = jnp.zeros((math.prod(batch), math.prod(sizes), C), x.dtype)
    row, _, channel = jnp.indices(places.shape, sparse=True)
    return empty.at[row, places, channel].set(values, mode="drop").reshape(*batch, *sizes, C)


def _forward(x: jax.Array, indices: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return _max_unpool(x, indices, sizes), indices


def _backward(sizes: tuple[int, ...], indices: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    batch, C = indices.shape[: -1 - len(sizes)], indices.shape[-1]
    dy, places = (a.reshape(math.prod(batch), -1, C) for a in (dy, indices))
    return jnp.take_along_axis(dy, places, 1, mode="fill", fill_value=0).reshape(indices.shape), None


_max_unpool.defvjp(_forward, _backward)
