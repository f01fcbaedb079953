"""adaptive_avg_pool and adaptive_max_pool: pooling into a given number of windows.

Window i of o over n elements is [floor(i n / o), ceil((i + 1) n / o)), so sizes differ by one at most.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import check_output_size
from .._window import Sizes, spatial_rank
from ._max_pool import larger, positions, running_max


def adaptive_avg_pool(x: jax.Array, output_size: Sizes) -> jax.Array:
    """The mean of each of `output_size` windows that cover x, [..., *output_size, C].

    Args:
      x: [..., *S, C]. With a plain number it is [N, *S, C].
      output_size: the number of windows, one for all spatial axes or one for each; None leaves an axis as it
        is.

    Raises: ValueError: a negative output size; an axis without elements.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.adaptive_avg_pool(jnp.ones((2, 7, 7, 3)), (1, 1)).shape
    (2, 1, 1, 3)

    torch counterpart: `torch.nn.functional.adaptive_avg_pool1d/2d/3d`, and `interpolate` with mode="area".
    Source: ATen/native/AdaptivePooling.h.
    """
    return _adaptive_avg_pool(x, _outputs("adaptive_avg_pool", x, output_size))


def adaptive_max_pool(
    x: jax.Array, output_size: Sizes, return_indices: bool = False
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """The largest element of each of `output_size` windows that cover x.

    Arguments and shapes are as in `adaptive_avg_pool`; `return_indices` is as in `max_pool`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.adaptive_max_pool(jnp.ones((2, 7, 7, 3)), 2).shape
    (2, 2, 2, 3)

    torch counterpart: `torch.nn.functional.adaptive_max_pool1d/2d/3d`.
    """
    y, indices = _adaptive_max_pool(x, _outputs("adaptive_max_pool", x, output_size), return_indices)
    return (y, indices) if return_indices else y


def _outputs(function: str, x: jax.Array, output_size: Sizes) -> tuple[int, ...]:
    check_output_size(function, output_size)
    rank = spatial_rank(function, x, output_size)
    sizes = x.shape[-1 - rank : -1]
    if 0 in sizes:
        raise ValueError(
            f"{function}: Expected input to have non-zero size for non-batch dimensions, but input has sizes "
            f"{x.shape}."
        )
    outputs = output_size if isinstance(output_size, Sequence) else (output_size,) * rank
    return tuple(n if o is None else o for n, o in zip(sizes, outputs, strict=True))


def _bins(n: int, o: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the o windows over n elements begin, and their sizes."""
    i = np.arange(o)
    # floor for the begin and ceil for the end, so neighbouring windows may overlap by one element.
    begins = i * n // max(o, 1)
    return begins, -(-(i + 1) * n // max(o, 1)) - begins


@functools.partial(jax.jit, static_argnums=(1,), inline=True)
def _adaptive_avg_pool(x: jax.Array, outputs: tuple[int, ...]) -> jax.Array:
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    for axis, o in enumerate(outputs, x.ndim - 1 - len(outputs)):
        n = x.shape[axis]
        begins, sizes = _bins(n, o)
        # Equal windows are a reshape; otherwise gather windows of the longest length and mask the surplus.
        if o and n % o == 0:
            members = y.reshape(*y.shape[:axis], o, n // o, *y.shape[axis + 1 :])
        else:
            longest = np.arange(sizes.max(initial=1))
            members = jnp.take(y, np.minimum(begins[:, None] + longest, n - 1), axis)
            exists = np.expand_dims(longest < sizes[:, None], list(range(2, members.ndim - axis)))
            members = jnp.where(exists, members, 0)
        y = members.sum(axis + 1) / np.expand_dims(sizes.astype(y.dtype), list(range(1, x.ndim - axis)))
    return y.astype(x.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _adaptive_max_pool(
    x: jax.Array, outputs: tuple[int, ...], return_indices: bool
) -> tuple[jax.Array, jax.Array | None]:
    arrays = [x, positions(x, len(outputs))] if return_indices else [x]
    for axis, o in reversed(list(enumerate(outputs, x.ndim - 1 - len(outputs)))):
        begins, sizes = _bins(x.shape[axis], o)
        # Sizes differ by at most one, so two windows of the power of two within the smallest cover each.
        half = 1 << (int(min(sizes, default=1)).bit_length() - 1)
        halves = running_max(arrays, axis, half)
        first, second = ([jnp.take(a, at, axis) for a in halves] for at in (begins, begins + sizes - half))
        arrays = larger(first, second, axis)
    return arrays[0], arrays[1] if return_indices else None
