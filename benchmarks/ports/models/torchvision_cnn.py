"""torchvision's classifiers made of convolutions."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal
from ..vision import torchvision


def classifier(name: str, rows: int = 3, pixels: int = 64, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, pixels, pixels),))


CASES = (classifier("resnet18"),)
