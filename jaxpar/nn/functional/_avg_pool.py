"""avg_pool and lp_pool: the mean of each window, and its p-norm.

The sums go over one spatial axis after the other; what they are divided by is known when the program
is built. Flax's `avg_pool` has no ceil_mode and no divisor of one's own.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from ._window import Ints, Window, check_counts, elements, pool_windows, spatial


def avg_pool(
    x: jax.Array,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """The mean of each window.

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      kernel_size, stride, padding: a number, or one for each spatial axis; `stride` is `kernel_size`
        if left out. Padding is 0.
      ceil_mode: whether a last window may reach over the end. What is beyond the padding never counts.
      count_include_pad: whether padding counts as elements.
      divisor_override: divide the sums by this instead.

    Returns:
      [..., *T, C].

    Raises:
      ValueError: padding above half of the kernel size; a divisor of 0; an axis shorter than its window.

    torch counterpart: `torch.nn.functional.avg_pool1d/2d/3d`. Source: ATen/native/cpu/AvgPoolKernel.cpp.
    """
    rank = spatial("avg_pool", x, kernel_size, stride, padding)
    over = pool_windows("avg_pool", rank, kernel_size, stride, padding, 1, ceil_mode)
    check_counts("avg_pool", x, over)
    check_divisor("avg_pool", divisor_override)
    return _avg_pool(x, over, count_include_pad, divisor_override)


def check_divisor(function: str, divisor_override: int | None) -> None:
    if divisor_override == 0:
        raise ValueError(f"{function}: divisor must be not zero.")


def lp_pool(
    x: jax.Array, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
) -> jax.Array:
    """(sum of x^p)^(1/p) of each window, p being `norm_type`.

    Args:
      x: [..., *S, C]. With plain numbers as options it is [N, *S, C].
      norm_type: p. Any number but 0; of a negative sum there is no root, which gives NaN.
      kernel_size, stride, ceil_mode: as in `avg_pool`. A window that reaches over the end counts as
        many elements as the others: its mean is multiplied by the size of a whole one, as in torch.

    Returns:
      [..., *T, C]. The gradient of a window of zeros is NaN, in torch as well.

    Raises:
      ValueError: a norm of order 0; an axis shorter than its window.

    torch counterpart: `torch.nn.functional.lp_pool1d/2d/3d`. Source: torch/nn/functional.py.
    """
    check_norm("lp_pool", norm_type)
    rank = spatial("lp_pool", x, kernel_size, stride)
    over = pool_windows("lp_pool", rank, kernel_size, stride, ceil_mode=ceil_mode)
    check_counts("lp_pool", x, over)
    mean = _avg_pool(x**norm_type, over, True, None)
    # The mean, but with torch's derivative at 0, which is 0.
    mean = jnp.sign(mean) * jax.nn.relu(jnp.abs(mean))
    return (mean * math.prod(w.size for w in over)) ** (1 / norm_type)


def check_norm(function: str, norm_type: float) -> None:
    if norm_type == 0:
        raise ValueError(f"{function}: norm_type is 0, and 1 / norm_type a division by zero.")


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def _avg_pool(
    x: jax.Array, over: tuple[Window, ...], count_include_pad: bool, divisor_override: int | None
) -> jax.Array:
    # Sums of half-precision inputs are taken in float32, as torch does.
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if jnp.issubdtype(x.dtype, jnp.floating) else x
    divisor: np.ndarray | int = 1
    for axis, window in enumerate(over, x.ndim - 1 - len(over)):
        counts = _counts(x.shape[axis], window, count_include_pad)
        divisor = divisor * np.expand_dims(counts, list(range(1, x.ndim - axis)))
        tiled = window.stride == window.size and not window.padding
        y = (_tile_sums if tiled else _sums)(y, axis, window)
    divisor = divisor if divisor_override is None else divisor_override
    # Integers are cut towards zero, as in torch.
    return jax.lax.div(y, jnp.broadcast_to(jnp.asarray(divisor, y.dtype), y.shape)).astype(x.dtype)


def _sums(x: jax.Array, axis: int, window: Window) -> jax.Array:
    """The sum of each window along an axis."""
    return functools.reduce(jnp.add, elements(x, axis, window, 0))


_tile_sums = functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))(_sums)


@_tile_sums.defjvp
def _tile_sums_jvp(
    axis: int, window: Window, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Windows side by side are the rows of a reshaped array.

    So the gradient is repeated and no more. Backwards through slices, JAX would pad it once for each
    element of a window and add that up.
    """
    ((x,), (dx,)) = primals, tangents
    n = x.shape[axis]
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (0, window.end(n), 0)
    whole = jax.lax.pad(dx, jnp.zeros((), dx.dtype), edges)
    tiles = whole.reshape(*x.shape[:axis], window.count(n), window.size, *x.shape[axis + 1 :])
    return _tile_sums(x, axis, window), tiles.sum(axis + 1)


def _counts(n: int, window: Window, count_include_pad: bool) -> np.ndarray:
    """How many elements each window has that count."""
    begins = np.arange(window.count(n)) * window.stride - window.padding
    ends = np.minimum(begins + window.size, n + window.padding)
    if not count_include_pad:
        begins, ends = np.maximum(begins, 0), np.minimum(ends, n)
    return ends - begins
