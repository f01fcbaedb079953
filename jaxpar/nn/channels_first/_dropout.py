"""Dropout of whole channels of [N, C, *S]."""

from __future__ import annotations

from .. import _dropout
from .axes import ChannelsFirst


class Dropout1d(ChannelsFirst, _dropout.FeatureDropout):
    """[N, C, *S] with one axis S; `jaxpar.nn.FeatureDropout` has the arguments.

    torch counterpart: `torch.nn.Dropout1d`.
    """


class Dropout2d(ChannelsFirst, _dropout.FeatureDropout):
    """[N, C, *S] with two axes S; `jaxpar.nn.FeatureDropout` has the arguments.

    torch counterpart: `torch.nn.Dropout2d`.
    """


class Dropout3d(ChannelsFirst, _dropout.FeatureDropout):
    """[N, C, *S] with three axes S; `jaxpar.nn.FeatureDropout` has the arguments.

    torch counterpart: `torch.nn.Dropout3d`.
    """
