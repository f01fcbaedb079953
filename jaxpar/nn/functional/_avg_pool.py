"""Means of windows, of one size or of as many as the output has elements, and their p-norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._array_types import Floating
from .._checks import check_divisor, check_norm_type, check_output_size
from .._window import Ints, Sizes, Window, check_counts, pool_windows, spatial_rank, window_elements
from ._max_pool import larger, positions, running_max


def avg_pool(
    x: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """The mean of each window, [..., *T, C].

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
        `jaxpar.nn.AvgPool`.

    Raises: ValueError: padding above half of the kernel size; a divisor of 0; an axis shorter than its
    window.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.avg_pool(jnp.arange(4.0).reshape(1, 4, 1), 2).ravel().tolist()
    [0.5, 2.5]

    torch counterpart: `torch.nn.functional.avg_pool1d/2d/3d`. Source: ATen/native/cpu/AvgPoolKernel.cpp.
    """
    over = pool_windows("avg_pool", x, kernel_size, stride, padding, 1, ceil_mode)
    check_counts("avg_pool", x, over)
    check_divisor("avg_pool", divisor_override)
    return _avg_pool(x, over, count_include_pad, divisor_override)


def lp_pool(
    x: jax.Array, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
) -> jax.Array:
    """(sum of x^p)^(1/p) of each window, p being `norm_type`.

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      norm_type: p, any number but 0. The root of a negative sum is NaN.
      kernel_size, stride, ceil_mode: as in `avg_pool`. A window that reaches beyond the end counts as many
        elements as the others: its mean is multiplied by the size of a whole one, as in torch.

    Returns: [..., *T, C]. The gradient of a window of zeros is NaN, in torch as well. Raises: ValueError: a
    norm of order 0; an axis shorter than its window.

    torch counterpart: `torch.nn.functional.lp_pool1d/2d/3d`. Source: torch/nn/functional.py.
    """
    check_norm_type("lp_pool", norm_type)
    over = pool_windows("lp_pool", x, kernel_size, stride, ceil_mode=ceil_mode)
    check_counts("lp_pool", x, over)
    mean = _avg_pool(x**norm_type, over, True, None)
    # torch writes sign(mean) * relu(|mean|), so the derivative at 0 is 0. At NaN torch's relu has 1, JAX's 0.
    size = jnp.abs(mean)
    mean = jnp.sign(mean) * jnp.where(size <= 0, 0, size)
    return (mean * math.prod(w.size for w in over)) ** (1 / norm_type)


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def _avg_pool(
    x: jax.Array, over: tuple[Window, ...], count_include_pad: bool, divisor_override: int | None
) -> jax.Array:
    # Half-precision inputs are summed in float32, as in torch.
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if jnp.issubdtype(x.dtype, jnp.floating) else x
    divisor: np.ndarray | int = 1
    for axis, window in enumerate(over, x.ndim - 1 - len(over)):
        counts = _counts(x.shape[axis], window, count_include_pad)
        divisor = divisor * np.expand_dims(counts, list(range(1, x.ndim - axis)))
        # Tiles have a cheaper derivative; see _tile_sums_jvp.
        tiled = window.stride == window.size and not window.padding
        y = (_tile_sums if tiled else _sums)(y, axis, window)
    divisor = divisor if divisor_override is None else divisor_override
    # lax.div truncates integers towards zero, as torch does; // would round them down.
    return jax.lax.div(y, jnp.broadcast_to(jnp.asarray(divisor, y.dtype), y.shape)).astype(x.dtype)


def _sums(x: jax.Array, axis: int, window: Window) -> jax.Array:
    return functools.reduce(jnp.add, window_elements(x, axis, window, 0))


_tile_sums = functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))(_sums)


@_tile_sums.defjvp
def _tile_sums_jvp(
    axis: int, window: Window, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # Windows next to one another are the rows of a reshaped array, so the gradient is merely repeated. JAX's
    # own derivative of the slices pads it once for each element of a window and adds all of that up.
    ((x,), (dx,)) = primals, tangents
    padded = jax.lax.pad(dx, jnp.zeros((), dx.dtype), window.edges(dx, axis))
    count = window.count(x.shape[axis])
    tiles = padded.reshape(*x.shape[:axis], count, window.size, *x.shape[axis + 1 :])
    return _tile_sums(x, axis, window), tiles.sum(axis + 1)


def _counts(n: int, window: Window, count_include_pad: bool) -> np.ndarray:
    """How many elements each window averages over."""
    begins = np.arange(window.count(n)) * window.stride - window.padding
    # With ceil_mode the last window may exceed the padding; elements there never count.
    ends = np.minimum(begins + window.size, n + window.padding)
    if not count_include_pad:
        begins, ends = np.maximum(begins, 0), np.minimum(ends, n)
    return ends - begins


# Window i of o over n elements is [floor(i n / o), ceil((i + 1) n / o)), so sizes differ by one at most.
def adaptive_avg_pool(x: Floating, output_size: Sizes) -> jax.Array:
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
