"""torchvision's models of videos."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from ..case import Case, normal
from ..vision import torchvision


def video(name: str, rows: int = 2, frames: int = 4, pixels: int = 32, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models.video, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, frames, pixels, pixels),))


def mvit(name: str, frames: int = 4, pixels: int = 64) -> Case:
    """Its functions know one size, of 16 frames with 224 pixels; its class takes any."""

    def make() -> torch.nn.Module:
        library = torchvision().models.video.mvit
        own = library._mvit
        smaller = {"temporal_size": frames, "spatial_size": (pixels, pixels)}
        with mock.patch.object(library, "_mvit", lambda **settings: own(**{**settings, **smaller})):
            return getattr(library, name)(num_classes=5)

    return Case(name, make, (normal(2, 3, frames, pixels, pixels),))


CASES = (
    *(video(name) for name in ("r3d_18", "mc3_18", "r2plus1d_18")),
    video("s3d", rows=1, frames=16, pixels=224),
    *map(mvit, ("mvit_v1_b", "mvit_v2_s")),
    *(video(f"swin3d_{size}", pixels=64) for size in "tsb"),
)
