"""Layers that move pixels: Upsample, the shuffles, Fold and Unfold."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from . import functional
from .functional._interpolate import check_options
from .functional._pixel_shuffle import check_factor, check_groups
from .functional._window import Ints, rank_of, windows


class Upsample(nnx.Module):
    """Resizes the spatial axes: [N, *S, C] to [N, *T, C].

    Args:
      size, scale_factor, mode, align_corners, recompute_scale_factor: as in `functional.interpolate`.

    Raises:
      ValueError: when it is made, with options that do not go together.

    torch counterpart: `torch.nn.Upsample`, with the checks of `torch.nn.functional.interpolate`.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ):
        check_options(size, scale_factor, mode, align_corners, recompute_scale_factor, antialias=False)
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )


class PixelShuffle(nnx.Module):
    """[..., H, W, C r^2] to [..., H r, W r, C], r being `upscale_factor`.

    torch counterpart: `torch.nn.PixelShuffle`. The function is `functional.pixel_shuffle`.
    """

    def __init__(self, upscale_factor: int):
        check_factor("pixel_shuffle", "upscale_factor", upscale_factor)
        self.upscale_factor = upscale_factor

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(nnx.Module):
    """[..., H r, W r, C] to [..., H, W, C r^2], r being `downscale_factor`.

    torch counterpart: `torch.nn.PixelUnshuffle`. The function is `functional.pixel_unshuffle`.
    """

    def __init__(self, downscale_factor: int):
        check_factor("pixel_unshuffle", "downscale_factor", downscale_factor)
        self.downscale_factor = downscale_factor

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.pixel_unshuffle(x, self.downscale_factor)


class ChannelShuffle(nnx.Module):
    """[..., C]: the first channels of all groups, then the second ones, and so on.

    torch counterpart: `torch.nn.ChannelShuffle`. The function is `functional.channel_shuffle`.
    """

    def __init__(self, groups: int):
        check_groups(groups)
        self.groups = groups

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.channel_shuffle(x, self.groups)


class Unfold(nnx.Module):
    """Every window as one row: [..., *S, C] to [..., L, C K].

    Args:
      kernel_size, dilation, padding, stride: a number, or one for each spatial axis.

    Raises:
      ValueError: when it is made, with a number below 1 (0 for padding).

    torch counterpart: `torch.nn.Unfold`. The function is `functional.unfold`.
    """

    def __init__(self, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1):
        rank = rank_of(kernel_size, dilation, padding, stride)
        windows("Unfold", rank, kernel_size, stride, padding, dilation)
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(nnx.Module):
    """The sum of rows, each at its window: [..., L, C K] to [..., *output_size, C].

    Args:
      output_size: the spatial sizes; a plain number stands for two equal ones.
      kernel_size, dilation, padding, stride: as given to `Unfold`.

    Raises:
      ValueError: when it is made, with a number below 1 (0 for padding).

    torch counterpart: `torch.nn.Fold`. The function is `functional.fold`.
    """

    def __init__(
        self,
        output_size: Ints,
        kernel_size: Ints,
        dilation: Ints = 1,
        padding: Ints = 0,
        stride: Ints = 1,
    ):
        rank = rank_of(output_size, kernel_size, dilation, padding, stride)
        windows("Fold", rank, kernel_size, stride, padding, dilation)
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.fold(
            x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )
