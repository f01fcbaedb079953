"""Borders around the spatial axes of [N, C, *S]."""

from __future__ import annotations

from .. import _pad
from .axes import ChannelsFirst


class ConstantPad1d(ChannelsFirst, _pad.ConstantPad):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.ConstantPad` has the arguments.

    torch counterpart: `torch.nn.ConstantPad1d`.
    """

    axes = 1


class ConstantPad2d(ChannelsFirst, _pad.ConstantPad):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.ConstantPad` has the arguments.

    torch counterpart: `torch.nn.ConstantPad2d`.
    """

    axes = 2


class ConstantPad3d(ChannelsFirst, _pad.ConstantPad):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.ConstantPad` has the arguments.

    torch counterpart: `torch.nn.ConstantPad3d`.
    """

    axes = 3


class ZeroPad1d(ChannelsFirst, _pad.ZeroPad):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.ZeroPad` has the arguments.

    torch counterpart: `torch.nn.ZeroPad1d`.
    """

    axes = 1


class ZeroPad2d(ChannelsFirst, _pad.ZeroPad):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.ZeroPad` has the arguments.

    torch counterpart: `torch.nn.ZeroPad2d`.
    """

    axes = 2


class ZeroPad3d(ChannelsFirst, _pad.ZeroPad):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.ZeroPad` has the arguments.

    torch counterpart: `torch.nn.ZeroPad3d`.
    """

    axes = 3


class ReflectionPad1d(ChannelsFirst, _pad.ReflectionPad):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.ReflectionPad` has the arguments.

    torch counterpart: `torch.nn.ReflectionPad1d`.
    """

    axes = 1


class ReflectionPad2d(ChannelsFirst, _pad.ReflectionPad):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.ReflectionPad` has the arguments.

    torch counterpart: `torch.nn.ReflectionPad2d`.
    """

    axes = 2


class ReflectionPad3d(ChannelsFirst, _pad.ReflectionPad):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.ReflectionPad` has the arguments.

    torch counterpart: `torch.nn.ReflectionPad3d`.
    """

    axes = 3


class ReplicationPad1d(ChannelsFirst, _pad.ReplicationPad):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.ReplicationPad` has the arguments.

    torch counterpart: `torch.nn.ReplicationPad1d`.
    """

    axes = 1


class ReplicationPad2d(ChannelsFirst, _pad.ReplicationPad):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.ReplicationPad` has the arguments.

    torch counterpart: `torch.nn.ReplicationPad2d`.
    """

    axes = 2


class ReplicationPad3d(ChannelsFirst, _pad.ReplicationPad):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.ReplicationPad` has the arguments.

    torch counterpart: `torch.nn.ReplicationPad3d`.
    """

    axes = 3


class CircularPad1d(ChannelsFirst, _pad.CircularPad):
    """[N, C, *S] with one axis S, or one row; `jaxpar.nn.CircularPad` has the arguments.

    torch counterpart: `torch.nn.CircularPad1d`.
    """

    axes = 1


class CircularPad2d(ChannelsFirst, _pad.CircularPad):
    """[N, C, *S] or [C, *S], two S; `jaxpar.nn.CircularPad` has the arguments.

    torch counterpart: `torch.nn.CircularPad2d`.
    """

    axes = 2


class CircularPad3d(ChannelsFirst, _pad.CircularPad):
    """[N, C, *S] or [C, *S], three S; `jaxpar.nn.CircularPad` has the arguments.

    torch counterpart: `torch.nn.CircularPad3d`.
    """

    axes = 3
