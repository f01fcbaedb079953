"""torchvision's models of segmentation."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal
from ..vision import torchvision


def segmentation(name: str, rows: int = 3, pixels: int = 64, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models.segmentation, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, pixels, pixels),))


NAMES = (
    *("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"),
    *("fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50"),
)
CASES = (
    *(segmentation(name, weights_backbone=None) for name in NAMES),
    # One BatchNorm has a single value for each channel and row.
    segmentation("deeplabv3_resnet101", rows=8, weights_backbone=None),
)
