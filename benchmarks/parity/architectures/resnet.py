"""ResNet-18 and ResNet-50 (He et al. 2015), with torchvision's names and places of the strides.

Flax's convolutions pad SAME by default, which with stride 2 pads one pixel on the right only: torch's
padding of 1 is written out. `use_bias=False` where a BatchNorm follows.
"""

from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inside, width, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + self.downsample(x)).relu()


class FlaxBasic(nnx.Module):
    expansion = 1

    def __init__(self, inside, width, stride, rngs):
        self.conv1 = conv(inside, width, 3, stride, rngs)
        self.bn1 = jaxpar.nn.BatchNorm(width)
        self.conv2 = conv(width, width, 3, 1, rngs)
        self.bn2 = jaxpar.nn.BatchNorm(width)
        self.downsample = FlaxShortcut(inside, width, stride, rngs)

    def __call__(self, x):
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nnx.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(inside, 4 * width, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + self.downsample(x)).relu()


class FlaxBottleneck(nnx.Module):
    expansion = 4

    def __init__(self, inside, width, stride, rngs):
        self.conv1 = conv(inside, width, 1, 1, rngs)
        self.bn1 = jaxpar.nn.BatchNorm(width)
        self.conv2 = conv(width, width, 3, stride, rngs)
        self.bn2 = jaxpar.nn.BatchNorm(width)
        self.conv3 = conv(width, 4 * width, 1, 1, rngs)
        self.bn3 = jaxpar.nn.BatchNorm(4 * width)
        self.downsample = FlaxShortcut(inside, 4 * width, stride, rngs)

    def __call__(self, x):
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = nnx.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return nnx.relu(y + self.downsample(x))


def shortcut(inside, outside, stride):
    """The identity where the shapes allow it."""
    if stride == 1 and inside == outside:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class FlaxShortcut(nnx.List):
    """The same; a list, for torch's names `downsample.0` and `downsample.1`."""

    def __init__(self, inside, outside, stride, rngs):
        same = stride == 1 and inside == outside
        super().__init__(
            [] if same else [conv(inside, outside, 1, stride, rngs), jaxpar.nn.BatchNorm(outside)]
        )

    def __call__(self, x):
        for layer in self:
            x = layer(x)
        return x


def conv(inside, outside, size, stride, rngs):
    return nnx.Conv(inside, outside, (size, size), stride, padding=size // 2, use_bias=False, rngs=rngs)


class ResNet(nn.Module):
    def __init__(self, block, depths, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(inside, width << i, 2 if i > 0 and j == 0 else 1))
                inside = block.expansion * (width << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inside, classes)
        self.stages = len(depths)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


class FlaxResNet(nnx.Module):
    def __init__(self, block, depths, width, classes, rngs):
        self.conv1 = conv(3, width, 7, 2, rngs)
        self.bn1 = jaxpar.nn.BatchNorm(width)
        inside = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(inside, width << i, 2 if i > 0 and j == 0 else 1, rngs))
                inside = block.expansion * (width << i)
            setattr(self, f"layer{i + 1}", nnx.List(blocks))
        self.fc = nnx.Linear(inside, classes, rngs=rngs)
        self.stages = len(depths)

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.conv1(x)))
        x = nnx.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for i in range(self.stages):
            for block in getattr(self, f"layer{i + 1}"):
                x = block(x)
        return self.fc(x.mean((1, 2)))


def resnet(name, blocks, depths, width, classes, pixels, rows):
    return Case(
        name,
        lambda: ResNet(blocks[0], depths, width, classes),
        lambda rngs: FlaxResNet(blocks[1], depths, width, classes, rngs),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )


def resnet18(depths=(2, 2, 2, 2), width=64, classes=1000, pixels=64, rows=4):
    return resnet("ResNet-18", (Basic, FlaxBasic), depths, width, classes, pixels, rows)


def resnet50(depths=(3, 4, 6, 3), width=64, classes=1000, pixels=64, rows=4):
    return resnet("ResNet-50", (Bottleneck, FlaxBottleneck), depths, width, classes, pixels, rows)
