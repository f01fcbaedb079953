"""Layers that move pixels: Upsample, shuffles, Fold, Unfold, pads; dataclasses of options, as the pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from .._arguments import AnyFloat
from . import functional
from ._checks import check_factor, check_interpolation, check_shuffle_groups
from ._layer import FunctionLayer, Layer
from ._window import Ints, Scale, spatial_rank, windows


@dataclasses.dataclass(eq=False, repr=False)
class Upsample(FunctionLayer):
    """Resizes the spatial axes: [N, *S, C] to [N, *T, C].

    Args:
      size, scale_factor, mode, align_corners, recompute_scale_factor: as in `functional.interpolate`.

    Raises: ValueError: at construction, for options that do not go together.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.Upsample(scale_factor=2)(jnp.ones((1, 4, 4, 3))).shape
    (1, 8, 8, 3)

    torch counterpart: `torch.nn.Upsample`, with the checks of `torch.nn.functional.interpolate`.
    """

    _function = staticmethod(functional.interpolate)
    size: int | Sequence[int] | None = None
    scale_factor: Scale | Sequence[Scale] | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def __post_init__(self) -> None:
        sizes = (self.size, self.scale_factor)
        check_interpolation(*sizes, self.mode, self.align_corners, self.recompute_scale_factor)


@dataclasses.dataclass(eq=False, repr=False)
class PixelShuffle(FunctionLayer):
    """[..., H, W, C r^2] to [..., H r, W r, C], r being `upscale_factor`.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.PixelShuffle(2)(jnp.ones((1, 4, 4, 12))).shape
    (1, 8, 8, 3)

    torch counterpart: `torch.nn.PixelShuffle`.
    """

    _function = staticmethod(functional.pixel_shuffle)
    upscale_factor: int

    def __post_init__(self) -> None:
        check_factor("pixel_shuffle", "upscale_factor", self.upscale_factor)


@dataclasses.dataclass(eq=False, repr=False)
class PixelUnshuffle(FunctionLayer):
    """[..., H r, W r, C] to [..., H, W, C r^2], r being `downscale_factor`.

    torch counterpart: `torch.nn.PixelUnshuffle`.
    """

    _function = staticmethod(functional.pixel_unshuffle)
    downscale_factor: int

    def __post_init__(self) -> None:
        check_factor("pixel_unshuffle", "downscale_factor", self.downscale_factor)


@dataclasses.dataclass(eq=False, repr=False)
class ChannelShuffle(FunctionLayer):
    """[..., C]: the first channels of all groups, then the second ones, and so on.

    torch counterpart: `torch.nn.ChannelShuffle`.
    """

    _function = staticmethod(functional.channel_shuffle)
    groups: int

    def __post_init__(self) -> None:
        check_shuffle_groups(self.groups)


@dataclasses.dataclass(eq=False, repr=False)
class Unfold(FunctionLayer):
    """Every window as one row: [..., *S, C] to [..., L, C K].

    Args:
      kernel_size, dilation, padding, stride: a number, or one for each spatial axis.

    Raises: ValueError: at construction, for a number below 1 (0 for padding).

    torch counterpart: `torch.nn.Unfold`.
    """

    _function = staticmethod(functional.unfold)
    kernel_size: Ints
    dilation: Ints = 1
    padding: Ints = 0
    stride: Ints = 1

    def __post_init__(self) -> None:
        rank = spatial_rank("Unfold", None, self.kernel_size, self.dilation, self.padding, self.stride)
        windows("Unfold", rank, self.kernel_size, self.stride, self.padding, self.dilation)


@dataclasses.dataclass(eq=False, repr=False)
class Fold(FunctionLayer):
    """Add each row to the image at its window: [..., L, C K] to [..., *output_size, C].

    Args:
      output_size: the spatial sizes; an int means two equal sizes.
      kernel_size, dilation, padding, stride: as given to `Unfold`.

    Raises: ValueError: as `Unfold`.

    torch counterpart: `torch.nn.Fold`.
    """

    _function = staticmethod(functional.fold)
    output_size: Ints
    kernel_size: Ints
    dilation: Ints = 1
    padding: Ints = 0
    stride: Ints = 1

    def __post_init__(self) -> None:
        sizes = (self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
        rank = spatial_rank("Fold", None, *sizes)
        windows("Fold", rank, self.kernel_size, self.stride, self.padding, self.dilation)


class _Pad(Layer):
    mode = "constant"
    value: AnyFloat | None = None

    def __init__(self, padding: Ints):
        if isinstance(padding, Sequence) and len(padding) % 2:
            raise ValueError(f"Padding length must be divisible by 2, but got {tuple(padding)}")
        self.padding = padding

    def __call__(self, x: jax.Array) -> jax.Array:
        padding = self.padding
        if not isinstance(padding, Sequence):
            padding = (padding,) * (2 * (x.ndim - 2))
        return functional.pad(x, padding, self.mode, self.value)


class ConstantPad(_Pad):
    """A border of `value`.

    Args:
      padding: a number for both ends of every spatial axis of [N, *S, C], or pairs (before, after), the last
        spatial axis first, as in torch. Negative numbers cut.
      value: fills the border.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.ConstantPad(1, 0.5)(jnp.ones((1, 4, 4, 3))).shape
    (1, 6, 6, 3)

    torch counterpart: `torch.nn.ConstantPad1d/2d/3d`.
    """

    def __init__(self, padding: Ints, value: AnyFloat):
        super().__init__(padding)
        self.value = value


class ZeroPad(_Pad):
    """A border of zeros; `padding` as in `ConstantPad`. torch counterpart: `torch.nn.ZeroPad1d/2d/3d`."""


class ReflectionPad(_Pad):
    """A border that mirrors x without repeating the edge; `padding` as in `ConstantPad`, below each size.

    torch counterpart: `torch.nn.ReflectionPad1d/2d/3d`.
    """

    mode = "reflect"


class ReplicationPad(_Pad):
    """A border that repeats the edge; `padding` as in `ConstantPad`.

    torch counterpart: `torch.nn.ReplicationPad1d/2d/3d`.
    """

    mode = "replicate"


class CircularPad(_Pad):
    """A border that continues from the other end; `padding` as in `ConstantPad`, at most each size.

    torch counterpart: `torch.nn.CircularPad1d/2d/3d`.
    """

    mode = "circular"
