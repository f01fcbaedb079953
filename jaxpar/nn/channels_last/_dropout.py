"""Dropout of whole channels of images."""

from __future__ import annotations

from .. import channels_first as first
from .axes import Images


class Dropout2d(Images, first.Dropout2d):
    """[N, H, W, C]; `jaxpar.nn.FeatureDropout` has the arguments.

    torch counterpart: `torch.nn.Dropout2d`.
    """
