"""A MobileNet (Sandler et al. 2018): inverted residuals with depthwise convolutions.

torch's `groups` is Flax's `feature_group_count`; a depthwise kernel is (C, 1, 3, 3) there, (3, 3, 1, C) here.
"""

from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal

BLOCKS = ((16, 1, 1), (24, 2, 6), (24, 1, 6), (32, 2, 6), (32, 1, 6), (64, 2, 6), (64, 1, 6), (96, 1, 6))
"""Width, stride and how much wider the block is inside."""


class Inverted(nn.Module):
    def __init__(self, inside, width, stride, wider):
        super().__init__()
        hidden = inside * wider
        self.expand, self.bn1 = nn.Conv2d(inside, hidden, 1, bias=False), nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.project, self.bn3 = nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width)
        self.residual = stride == 1 and inside == width

    def forward(self, x):
        y = nn.functional.relu6(self.bn1(self.expand(x)))
        y = nn.functional.relu6(self.bn2(self.depthwise(y)))
        y = self.bn3(self.project(y))
        return x + y if self.residual else y


class FlaxInverted(nnx.Module):
    def __init__(self, inside, width, stride, wider, rngs):
        hidden = inside * wider
        self.expand = nnx.Conv(inside, hidden, (1, 1), use_bias=False, rngs=rngs)
        self.bn1 = jaxpar.nn.BatchNorm(hidden)
        self.depthwise = nnx.Conv(
            hidden,
            hidden,
            (3, 3),
            stride,
            padding=1,
            feature_group_count=hidden,
            use_bias=False,
            rngs=rngs,
        )
        self.bn2 = jaxpar.nn.BatchNorm(hidden)
        self.project = nnx.Conv(hidden, width, (1, 1), use_bias=False, rngs=rngs)
        self.bn3 = jaxpar.nn.BatchNorm(width)
        self.residual = stride == 1 and inside == width

    def __call__(self, x):
        y = nnx.relu6(self.bn1(self.expand(x)))
        y = nnx.relu6(self.bn2(self.depthwise(y)))
        y = self.bn3(self.project(y))
        return x + y if self.residual else y


class MobileNet(nn.Module):
    def __init__(self, stem, blocks, classes):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem)
        inside = [stem, *(width for width, _, _ in blocks)]
        self.blocks = nn.ModuleList(Inverted(i, *b) for i, b in zip(inside, blocks, strict=False))
        self.head = nn.Linear(inside[-1], classes)

    def forward(self, x):
        x = nn.functional.relu6(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class FlaxMobileNet(nnx.Module):
    def __init__(self, stem, blocks, classes, rngs):
        self.stem = nnx.Conv(3, stem, (3, 3), 2, padding=1, use_bias=False, rngs=rngs)
        self.bn = jaxpar.nn.BatchNorm(stem)
        inside = [stem, *(width for width, _, _ in blocks)]
        self.blocks = nnx.List([FlaxInverted(i, *b, rngs) for i, b in zip(inside, blocks, strict=False)])
        self.head = nnx.Linear(inside[-1], classes, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu6(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def mobilenet(stem=32, blocks=BLOCKS, classes=1000, pixels=64, rows=4):
    return Case(
        "MobileNet, depthwise",
        lambda: MobileNet(stem, blocks, classes),
        lambda rngs: FlaxMobileNet(stem, blocks, classes, rngs),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )
