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


CASES = tuple(
    segmentation(name, weights_backbone=None)
    for name in (
        *("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"),
        *("fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101"),
    )
)
