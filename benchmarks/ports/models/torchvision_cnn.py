"""torchvision's classifiers made of convolutions."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal
from ..vision import torchvision

# Four images of 64 pixels leave 16 values for each channel of the last BatchNorm: of four its derivative
# would make rounding visible.
ROWS, PIXELS = 4, 64
# XLA takes long over a convolution of each channel alone, on CPUs: half the pixels, and 8 values.
FEWER = {"rows": 8, "pixels": 32}
SIZES = "400mf 800mf 1_6gf 3_2gf 8gf 16gf 32gf"
NAMES = (
    *("squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *(f"shufflenet_v2_{width}" for width in ("x0_5", "x1_0", "x1_5", "x2_0")),
    *(f"mnasnet{width}" for width in ("0_5", "0_75", "1_0", "1_3")),
    *(f"resnet{depth}" for depth in (18, 34, 50, 101)),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
    *(f"regnet_{kind}_{size}" for kind in "xy" for size in SIZES.split()),
)
DENSENETS = tuple(f"densenet{depth}" for depth in (121, 161, 169, 201))
EFFICIENT = ("b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "v2_s", "v2_m", "v2_l")
VGGS = tuple(f"vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn"))


def regnet_y_128gf() -> Case:
    """Without its last stage: a proof has 16 times the weights, in float64, which are 82 GB for all of it."""

    def make() -> torch.nn.Module:
        regnet = torchvision().models.regnet
        settings = regnet.BlockParams([1, 2, 2], [528, 1056, 2904], [264] * 3, [1.0] * 3, [2] * 3, 0.25)
        return regnet.RegNet(settings, num_classes=5)

    return Case("regnet_y_128gf, 5 of 27 blocks", make, (normal(ROWS, 3, PIXELS, PIXELS),))


def classifier(name: str, rows: int = ROWS, pixels: int = PIXELS, **settings: Any) -> Case:
    def make() -> torch.nn.Module:
        return getattr(torchvision().models, name)(num_classes=5, **settings)

    return Case(name, make, (normal(rows, 3, pixels, pixels),))


CASES = (
    *map(classifier, NAMES),
    regnet_y_128gf(),
    # Through so many BatchNorms in a row 16 values of a channel are too few.
    classifier("resnet152", rows=8, pixels=96),
    *(classifier(name, rows=8) for name in DENSENETS),
    *(classifier(f"efficientnet_{size}", **FEWER) for size in EFFICIENT),
    classifier("googlenet", init_weights=False),
    # Its auxiliary head takes nothing smaller than 299 pixels.
    classifier("inception_v3", pixels=107, init_weights=False, aux_logits=False),
    classifier("alexnet"),
    *(classifier(name, pixels=32) for name in VGGS),
)
