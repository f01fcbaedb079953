"""torchvision's models of videos."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal
from ..vision import torchvision


def video(name: str, rows: int = 2, frames: int = 4, pixels: int = 32, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models.video, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, frames, pixels, pixels),))


CASES = (video("r3d_18"),)
