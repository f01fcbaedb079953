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


CASES = (
    *(video(name) for name in ("r3d_18", "mc3_18", "r2plus1d_18")),
    video("s3d", rows=1, frames=16, pixels=224),
    *(video(name, pixels=64, temporal_size=4, spatial_size=(64, 64)) for name in ("mvit_v1_b", "mvit_v2_s")),
    *(video(f"swin3d_{size}", pixels=64) for size in "tsb"),
)
