"""Borders around images."""

from __future__ import annotations

from .. import channels_first as first
from .axes import Images


class ConstantPad2d(Images, first.ConstantPad2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.ConstantPad` has the arguments.

    torch counterpart: `torch.nn.ConstantPad2d`.
    """


class ZeroPad2d(Images, first.ZeroPad2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.ZeroPad` has the arguments.

    torch counterpart: `torch.nn.ZeroPad2d`.
    """


class ReflectionPad2d(Images, first.ReflectionPad2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.ReflectionPad` has the arguments.

    torch counterpart: `torch.nn.ReflectionPad2d`.
    """


class ReplicationPad2d(Images, first.ReplicationPad2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.ReplicationPad` has the arguments.

    torch counterpart: `torch.nn.ReplicationPad2d`.
    """


class CircularPad2d(Images, first.CircularPad2d):
    """[N, H, W, C] to [N, T, U, C]; `jaxpar.nn.CircularPad` has the arguments.

    torch counterpart: `torch.nn.CircularPad2d`.
    """
