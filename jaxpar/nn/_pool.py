"""Pools in torch's form, for any number of spatial axes: they keep options and call the functions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from . import functional
from .functional._adaptive_pool import Sizes, check_output_size
from .functional._avg_pool import check_divisor, check_norm
from .functional._window import Ints, pool_windows, rank_of


class MaxPool(nnx.Module):
    """The largest element of each window: [..., *S, C] to [..., *T, C].

    Args:
      kernel_size, stride, padding, dilation: a number, or one for each spatial axis; `stride` is
        `kernel_size` if left out.
      return_indices: return (values, positions).
      ceil_mode: whether a last window may reach over the end.

    Raises:
      ValueError: when it is made, with padding above half of the kernel size or a number below 1.

    torch counterpart: `torch.nn.MaxPool1d/2d/3d`. The function is `functional.max_pool`.
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ):
        rank = rank_of(kernel_size, stride, padding, dilation)
        pool_windows("MaxPool", rank, kernel_size, stride, padding, dilation)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def __call__(self, x: jax.Array) -> jax.Array | tuple[jax.Array, jax.Array]:
        return functional.max_pool(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxUnpool(nnx.Module):
    """Puts what a MaxPool found back to its place, zeros elsewhere: [..., *T, C] to [..., *S, C].

    Args:
      kernel_size, stride, padding: those of the MaxPool.

    Called with `(x, indices, output_size=None)`.

    torch counterpart: `torch.nn.MaxUnpool1d/2d/3d`. The function is `functional.max_unpool`.
    """

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0):
        pool_windows("MaxUnpool", rank_of(kernel_size, stride, padding), kernel_size, stride, padding)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def __call__(
        self, x: jax.Array, indices: jax.Array, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        return functional.max_unpool(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class AvgPool(nnx.Module):
    """The mean of each window: [..., *S, C] to [..., *T, C].

    Args:
      kernel_size, stride, padding: a number, or one for each spatial axis; `stride` is `kernel_size`
        if left out.
      ceil_mode: whether a last window may reach over the end.
      count_include_pad: whether padding counts as elements.
      divisor_override: divide the sums by this instead.

    Raises:
      ValueError: when it is made, with padding above half of the kernel size, a number below 1, or a
        divisor of 0.

    torch counterpart: `torch.nn.AvgPool1d/2d/3d`. The function is `functional.avg_pool`.
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        pool_windows("AvgPool", rank_of(kernel_size, stride, padding), kernel_size, stride, padding)
        check_divisor("AvgPool", divisor_override)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.avg_pool(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class LPPool(nnx.Module):
    """The p-norm of each window: [..., *S, C] to [..., *T, C].

    Args:
      norm_type: p.
      kernel_size, stride, ceil_mode: as in `AvgPool`.

    torch counterpart: `torch.nn.LPPool1d/2d/3d`. The function is `functional.lp_pool`.
    """

    def __init__(
        self, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ):
        check_norm("LPPool", norm_type)
        pool_windows("LPPool", rank_of(kernel_size, stride), kernel_size, stride)
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.lp_pool(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class AdaptiveAvgPool(nnx.Module):
    """The means of as many windows as asked for: [..., *S, C] to [..., *output_size, C].

    Args:
      output_size: a number, or one for each spatial axis; None leaves an axis as it is.

    torch counterpart: `torch.nn.AdaptiveAvgPool1d/2d/3d`. The function is `functional.adaptive_avg_pool`.
    """

    def __init__(self, output_size: Sizes):
        check_output_size("AdaptiveAvgPool", output_size)
        self.output_size = output_size

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.adaptive_avg_pool(x, self.output_size)


class AdaptiveMaxPool(nnx.Module):
    """The largest elements of as many windows as asked for: [..., *S, C] to [..., *output_size, C].

    Args:
      output_size: a number, or one for each spatial axis; None leaves an axis as it is.
      return_indices: return (values, positions).

    torch counterpart: `torch.nn.AdaptiveMaxPool1d/2d/3d`. The function is `functional.adaptive_max_pool`.
    """

    def __init__(self, output_size: Sizes, return_indices: bool = False):
        check_output_size("AdaptiveMaxPool", output_size)
        self.output_size = output_size
        self.return_indices = return_indices

    def __call__(self, x: jax.Array) -> jax.Array | tuple[jax.Array, jax.Array]:
        return functional.adaptive_max_pool(x, self.output_size, self.return_indices)
