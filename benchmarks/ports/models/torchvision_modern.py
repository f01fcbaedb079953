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


def transformer(name: str, blocks: int, of: int, pixels: int = 64, **sizes: int) -> Case:
    def make() -> torch.nn.Module:
        kind = torchvision().models.VisionTransformer
        return kind(image_size=pixels, num_layers=blocks, num_classes=5, **sizes)

    return Case(f"{name}, {blocks} of {of} blocks", make, (normal(3, 3, pixels, pixels),))


def convnext_large(blocks: int, of: int = 27) -> Case:
    """The third of its stages is shorter."""

    def make() -> torch.nn.Module:
        convnext = torchvision().models.convnext
        widths, depths = (192, 384, 768, 1536, None), (3, 3, blocks, 3)
        settings = [convnext.CNBlockConfig(*each) for each in zip(widths, widths[1:], depths, strict=False)]
        return convnext.ConvNeXt(settings, stochastic_depth_prob=0.5, num_classes=5)

    return Case(f"convnext_large, {blocks} of {of} blocks in stage 3", make, (normal(3, 3, 64, 64),))


LARGE = {"num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096}
HUGE = {"num_heads": 16, "hidden_dim": 1280, "mlp_dim": 5120}
CASES = (
    *(classifier(f"convnext_{size}") for size in ("tiny", "small", "base")),
    *(classifier(f"vit_{size}", image_size=64) for size in ("b_16", "b_32")),
    # A proof has 16 times the weights, in float64: 37 GB for all blocks of vit_l_16.
    convnext_large(6),
    transformer("vit_l_16", 6, 24, patch_size=16, **LARGE),
    transformer("vit_l_32", 6, 24, patch_size=32, **LARGE),
    transformer("vit_h_14", 4, 32, pixels=56, patch_size=14, **HUGE),
    *(classifier(f"swin_{size}") for size in "tsb"),
    *(classifier(f"swin_v2_{size}") for size in "tsb"),
    classifier("maxvit_t", rows=1, pixels=224, input_size=(224, 224)),
)
