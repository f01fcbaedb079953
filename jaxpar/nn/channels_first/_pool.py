"""Pools over the spatial axes of [N, C, *S]."""

from __future__ import annotations

from .. import _pool
from .axes import ChannelsFirst


class MaxPool1d(ChannelsFirst, _pool.MaxPool):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.MaxPool` has the arguments.

    torch counterpart: `torch.nn.MaxPool1d`.
    """

    axes = 1


class MaxPool2d(ChannelsFirst, _pool.MaxPool):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.MaxPool` has the arguments.

    torch counterpart: `torch.nn.MaxPool2d`.
    """

    axes = 2


class MaxPool3d(ChannelsFirst, _pool.MaxPool):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.MaxPool` has the arguments.

    torch counterpart: `torch.nn.MaxPool3d`.
    """

    axes = 3


class AvgPool1d(ChannelsFirst, _pool.AvgPool):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.AvgPool` has the arguments.

    torch counterpart: `torch.nn.AvgPool1d`.
    """

    axes = 1


class AvgPool2d(ChannelsFirst, _pool.AvgPool):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.AvgPool` has the arguments.

    torch counterpart: `torch.nn.AvgPool2d`.
    """

    axes = 2


class AvgPool3d(ChannelsFirst, _pool.AvgPool):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.AvgPool` has the arguments.

    torch counterpart: `torch.nn.AvgPool3d`.
    """

    axes = 3


class LPPool1d(ChannelsFirst, _pool.LPPool):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.LPPool` has the arguments.

    torch counterpart: `torch.nn.LPPool1d`.
    """

    axes = 1


class LPPool2d(ChannelsFirst, _pool.LPPool):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.LPPool` has the arguments.

    torch counterpart: `torch.nn.LPPool2d`.
    """

    axes = 2


class LPPool3d(ChannelsFirst, _pool.LPPool):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.LPPool` has the arguments.

    torch counterpart: `torch.nn.LPPool3d`.
    """

    axes = 3


class AdaptiveAvgPool1d(ChannelsFirst, _pool.AdaptiveAvgPool):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.AdaptiveAvgPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveAvgPool1d`.
    """

    axes = 1


class AdaptiveAvgPool2d(ChannelsFirst, _pool.AdaptiveAvgPool):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.AdaptiveAvgPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveAvgPool2d`.
    """

    axes = 2


class AdaptiveAvgPool3d(ChannelsFirst, _pool.AdaptiveAvgPool):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.AdaptiveAvgPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveAvgPool3d`.
    """

    axes = 3


class AdaptiveMaxPool1d(ChannelsFirst, _pool.AdaptiveMaxPool):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.AdaptiveMaxPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveMaxPool1d`.
    """

    axes = 1


class AdaptiveMaxPool2d(ChannelsFirst, _pool.AdaptiveMaxPool):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.AdaptiveMaxPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveMaxPool2d`.
    """

    axes = 2


class AdaptiveMaxPool3d(ChannelsFirst, _pool.AdaptiveMaxPool):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.AdaptiveMaxPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveMaxPool3d`.
    """

    axes = 3
