"""Pools over the space of images."""

from __future__ import annotations

from .. import channels_first as first
from .axes import Images


class MaxPool2d(Images, first.MaxPool2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.MaxPool` has the arguments.

    torch counterpart: `torch.nn.MaxPool2d`.
    """


class AvgPool2d(Images, first.AvgPool2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.AvgPool` has the arguments.

    torch counterpart: `torch.nn.AvgPool2d`.
    """


class LPPool2d(Images, first.LPPool2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.LPPool` has the arguments.

    torch counterpart: `torch.nn.LPPool2d`.
    """


class AdaptiveAvgPool2d(Images, first.AdaptiveAvgPool2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.AdaptiveAvgPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveAvgPool2d`.
    """


class AdaptiveMaxPool2d(Images, first.AdaptiveMaxPool2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.AdaptiveMaxPool` has the arguments.

    torch counterpart: `torch.nn.AdaptiveMaxPool2d`.
    """
