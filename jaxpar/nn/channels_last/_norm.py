"""Norms of images over the channels or groups of them."""

from __future__ import annotations

from .. import channels_first as first
from .axes import Images


class BatchNorm2d(Images, first.BatchNorm2d):
    """[N, H, W, C]; `jaxpar.nn.BatchNorm` has the arguments.

    torch counterpart: `torch.nn.BatchNorm2d`.
    """


class InstanceNorm2d(Images, first.InstanceNorm2d):
    """[N, H, W, C]; `jaxpar.nn.InstanceNorm` has the arguments.

    torch counterpart: `torch.nn.InstanceNorm2d`.
    """


class GroupNorm(Images, first.GroupNorm):
    """[N, H, W, C], or [N, C, ...]; `jaxpar.nn.GroupNorm` has the arguments.

    torch counterpart: `torch.nn.GroupNorm`.
    """


class LocalResponseNorm(Images, first.LocalResponseNorm):
    """[N, H, W, C], or [N, C, ...]; `jaxpar.nn.LocalResponseNorm` has the arguments.

    torch counterpart: `torch.nn.LocalResponseNorm`.
    """
