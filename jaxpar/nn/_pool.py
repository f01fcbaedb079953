"""Pools in torch's form, for any number of spatial axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from . import functional
from ._checks import check_divisor, check_norm_type, check_output_size
from ._layer import FunctionLayer, Layer
from ._window import Ints, Sizes, pool_windows


@dataclasses.dataclass(eq=False, repr=False)
class MaxPool(FunctionLayer):
    """Take the largest element of each window: [..., *S, C] to [..., *T, C].

    Args:
      kernel_size, stride, padding, dilation: a number, or one for each spatial axis; `stride` is
        `kernel_size` if left out.
      return_indices: return (values, positions).
      ceil_mode: whether a last window may reach beyond the end.

    Raises: ValueError: at construction, for padding above half of the kernel size or a number below 1.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.MaxPool(2)(jnp.ones((1, 6, 6, 3))).shape
    (1, 3, 3, 3)

    torch counterpart: `torch.nn.MaxPool1d/2d/3d`.
    """

    _function = staticmethod(functional.max_pool)
    kernel_size: Ints
    stride: Ints | None = None
    padding: Ints = 0
    dilation: Ints = 1
    return_indices: bool = False
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        pool_windows("MaxPool", None, self.kernel_size, self.stride, self.padding, self.dilation)


@dataclasses.dataclass(eq=False, repr=False)
class MaxUnpool(Layer):
    """Put a MaxPool's maxima back at their positions, and zeros elsewhere: [..., *T, C] to [..., *S, C].

    Args:
      kernel_size, stride, padding: as in the MaxPool.

    Called with `(x, indices, output_size=None)`.

    torch counterpart: `torch.nn.MaxUnpool1d/2d/3d`.
    """

    kernel_size: Ints
    stride: Ints | None = None
    padding: Ints = 0

    def __post_init__(self) -> None:
        pool_windows("MaxUnpool", None, self.kernel_size, self.stride, self.padding)

    def __call__(
        self, x: jax.Array, indices: jax.Array, output_size: Sequence[int] | None = None
    ) -> jax.Array:
        return functional.max_unpool(x, indices, self.kernel_size, self.stride, self.padding, output_size)


@dataclasses.dataclass(eq=False, repr=False)
class AvgPool(FunctionLayer):
    """The mean of each window: [..., *S, C] to [..., *T, C].

    Args:
      kernel_size, stride, padding: a number, or one for each spatial axis; `stride` is `kernel_size` if left
        out. Padding is 0.
      ceil_mode: whether a last window may reach beyond the end. Elements beyond the padding never count.
      count_include_pad: whether padding counts as elements.
      divisor_override: divide the sums by this instead.

    Raises: ValueError: at construction, for padding above half of the kernel size, a number below 1, or a
    divisor of 0.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.AvgPool(2)(jnp.ones((1, 6, 6, 3))).shape
    (1, 3, 3, 3)

    torch counterpart: `torch.nn.AvgPool1d/2d/3d`.
    """

    _function = staticmethod(functional.avg_pool)
    kernel_size: Ints
    stride: Ints | None = None
    padding: Ints = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    def __post_init__(self) -> None:
        pool_windows("AvgPool", None, self.kernel_size, self.stride, self.padding)
        check_divisor("AvgPool", self.divisor_override)


@dataclasses.dataclass(eq=False, repr=False)
class LPPool(FunctionLayer):
    """The p-norm of each window: [..., *S, C] to [..., *T, C].

    Args:
      norm_type: p.
      kernel_size, stride, ceil_mode: as in `AvgPool`.

    torch counterpart: `torch.nn.LPPool1d/2d/3d`.
    """

    _function = staticmethod(functional.lp_pool)
    norm_type: float
    kernel_size: Ints
    stride: Ints | None = None
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        check_norm_type("LPPool", self.norm_type)
        pool_windows("LPPool", None, self.kernel_size, self.stride)


@dataclasses.dataclass(eq=False, repr=False)
class AdaptiveAvgPool(FunctionLayer):
    """The means of a given number of windows: [..., *S, C] to [..., *output_size, C].

    Args:
      output_size: a number, or one for each spatial axis; None leaves an axis as it is.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.AdaptiveAvgPool((1, 1))(jnp.ones((1, 6, 6, 3))).shape
    (1, 1, 1, 3)

    torch counterpart: `torch.nn.AdaptiveAvgPool1d/2d/3d`.
    """

    _function = staticmethod(functional.adaptive_avg_pool)
    output_size: Sizes

    def __post_init__(self) -> None:
        check_output_size("AdaptiveAvgPool", self.output_size)


@dataclasses.dataclass(eq=False, repr=False)
class AdaptiveMaxPool(FunctionLayer):
    """The largest elements of a given number of windows: [..., *S, C] to [..., *output_size, C].

    Args:
      output_size: a number, or one for each spatial axis; None leaves an axis as it is.
      return_indices: return (values, positions).

    torch counterpart: `torch.nn.AdaptiveMaxPool1d/2d/3d`.
    """

    _function = staticmethod(functional.adaptive_max_pool)
    output_size: Sizes
    return_indices: bool = False

    def __post_init__(self) -> None:
        check_output_size("AdaptiveMaxPool", self.output_size)
