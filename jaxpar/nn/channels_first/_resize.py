"""Images that become larger, smaller or rows of windows; [N, C, H, W]."""

from __future__ import annotations

from .. import _resize
from .axes import ChannelsFirst


class Upsample(ChannelsFirst, _resize.Upsample):
    """[N, C, *S] to [N, C, *T]; `jaxpar.nn.Upsample` has the arguments.

    torch counterpart: `torch.nn.Upsample`.
    """


class PixelShuffle(ChannelsFirst, _resize.PixelShuffle):
    """[N, C r^2, H, W] to [N, C, H r, W r]; `jaxpar.nn.PixelShuffle` has the arguments.

    torch counterpart: `torch.nn.PixelShuffle`.
    """

    axes = 2


class PixelUnshuffle(ChannelsFirst, _resize.PixelUnshuffle):
    """[N, C, H r, W r] to [N, C r^2, H, W]; `jaxpar.nn.PixelUnshuffle` has the arguments.

    torch counterpart: `torch.nn.PixelUnshuffle`.
    """

    axes = 2


class ChannelShuffle(ChannelsFirst, _resize.ChannelShuffle):
    """[N, C, *S]; `jaxpar.nn.ChannelShuffle` has the arguments.

    torch counterpart: `torch.nn.ChannelShuffle`.
    """


class Unfold(ChannelsFirst, _resize.Unfold):
    """[N, C, *S] to [N, C K, L]; `jaxpar.nn.Unfold` has the arguments.

    torch counterpart: `torch.nn.Unfold`.
    """


class Fold(ChannelsFirst, _resize.Fold):
    """[N, C K, L] to [N, C, *output_size]; `jaxpar.nn.Fold` has the arguments.

    torch counterpart: `torch.nn.Fold`.
    """

    axes = 1
