"""U-Net (Ronneberger et al. 2015) with BatchNorm and padding, so that skip connections fit without cropping.

Channels are joined on axis 1 in torch and on the last axis here; the order of the two parts matters.
"""

import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal


class Twice(nn.Module):
    def __init__(self, inside, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        return self.bn2(self.conv2(x)).relu()


class FlaxTwice(nnx.Module):
    def __init__(self, inside, width, rngs):
        options = {"padding": 1, "use_bias": False, "rngs": rngs}
        self.conv1, self.bn1 = nnx.Conv(inside, width, (3, 3), **options), jaxpar.nn.BatchNorm(width)
        self.conv2, self.bn2 = nnx.Conv(width, width, (3, 3), **options), jaxpar.nn.BatchNorm(width)

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.conv1(x)))
        return nnx.relu(self.bn2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(Twice(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.join = nn.ModuleList(Twice(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        skips = []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for skip, up, join in zip(skips[::-1], self.up[::-1], self.join[::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class FlaxUNet(nnx.Module):
    def __init__(self, width, depth, classes, rngs):
        widths = [width << i for i in range(depth + 1)]
        self.down = nnx.List([FlaxTwice(i, o, rngs) for i, o in zip([3, *widths], widths, strict=False)])
        # With kernel and stride 2 no windows overlap, and Flax's VALID is torch's padding 0.
        self.up = nnx.List(
            [
                nnx.ConvTranspose(2 * w, w, (2, 2), (2, 2), padding="VALID", transpose_kernel=True, rngs=rngs)
                for w in widths[:-1]
            ]
        )
        self.join = nnx.List([FlaxTwice(2 * w, w, rngs) for w in widths[:-1]])
        self.head = nnx.Conv(width, classes, (1, 1), rngs=rngs)

    def __call__(self, x):
        skips = []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = nnx.max_pool(skips[-1], (2, 2), (2, 2))
        x = self.down[-1](x)
        for skip, up, join in zip(skips[::-1], self.up[::-1], self.join[::-1], strict=True):
            x = join(jnp.concatenate([skip, up(x)], -1))
        return self.head(x)


def unet(width=64, depth=4, classes=2, pixels=64, rows=1):
    return Case(
        "U-Net",
        lambda: UNet(width, depth, classes),
        lambda rngs: FlaxUNet(width, depth, classes, rngs),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )
