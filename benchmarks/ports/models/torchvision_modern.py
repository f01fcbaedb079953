"""torchvision's classifiers made of attention, and the convolutions that came after them."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal
from ..vision import torchvision


def classifier(name: str, rows: int = 3, pixels: int = 64, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, pixels, pixels),))


CASES = (
    *(classifier(f"convnext_{size}") for size in ("tiny", "small", "base", "large")),
    *(classifier(f"vit_{size}", image_size=64) for size in ("b_16", "b_32", "l_16", "l_32")),
    classifier("vit_h_14", pixels=56, image_size=56),
    *(classifier(f"swin_{size}") for size in "tsb"),
    *(classifier(f"swin_v2_{size}") for size in "tsb"),
    classifier("maxvit_t", rows=1, pixels=224, input_size=(224, 224)),
)
