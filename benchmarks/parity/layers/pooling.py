"""Pools, resizing and reshaping. Flax's pools have stride 1 by default, torch's the size of the window."""

import jax
import jax.numpy as jnp
from flax import nnx
from torch import nn
from torch.nn import functional as F

from ..case import Apply, Case, normal

LINE, PLANE = (normal(2, 3, 9),), (normal(2, 3, 8, 6),)


def shape(name, torch, function, inputs=PLANE):
    return Case(name, torch, lambda rngs: Apply(function), inputs, layout="channels_last")


def max_pool(size, stride, padding=(0, 0)):
    """Windows of `size` on two axes, the axes padded by `padding` before and after."""
    return lambda x: nnx.max_pool(x, (size, size), (stride, stride), [padding] * 2)


def average_pool(size, stride, padding=0, count=True):
    pads = [(padding, padding)] * 2
    return lambda x: nnx.avg_pool(x, (size, size), (stride, stride), pads, count_include_pad=count)


def bilinear(x, height, width):
    """Half-pixel centres: torch's align_corners=False. torch never smooths when it shrinks."""
    return jax.image.resize(x, (x.shape[0], height, width, x.shape[3]), "bilinear", antialias=False)


def aligned(x, height, width):
    """The corners of input and output are the same points: torch's align_corners=True."""
    sizes = jnp.array([height - 1, width - 1], x.dtype)
    scale = sizes / (jnp.array(x.shape[1:3], x.dtype) - 1)
    return jax.image.scale_and_translate(
        x,
        (x.shape[0], height, width, x.shape[3]),
        (1, 2),
        scale,
        0.5 - 0.5 * scale,  # a pixel's centre is half a pixel from its corner
        "linear",
        antialias=False,
    )


def pixel_shuffle(x, r):
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, c // r**2, r, r)
    return x.transpose(0, 1, 4, 2, 5, 3).reshape(n, h * r, w * r, c // r**2)


class Resize(nn.Module):
    def __init__(self, *size, **options):
        super().__init__()
        self.size, self.options = size, options

    def forward(self, x):
        return F.interpolate(x, self.size, **self.options)


class Flattened(nn.Module):
    """Flatten after a convolution: torch's order is channel, row, column."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 4, 5)

    def forward(self, x):
        return self.linear(self.conv(x).flatten(1))


class FlaxFlattened(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=rngs)
        self.linear = nnx.Linear(4 * 6 * 4, 5, rngs=rngs)

    def __call__(self, x):
        x = self.conv(x).transpose(0, 3, 1, 2)
        return self.linear(x.reshape(len(x), -1))


CASES = [
    shape("MaxPool1d", lambda: nn.MaxPool1d(2), lambda x: nnx.max_pool(x, (2,), (2,)), LINE),
    shape("MaxPool2d", lambda: nn.MaxPool2d(2), max_pool(2, 2)),
    shape("MaxPool2d, padding", lambda: nn.MaxPool2d(3, 2, 1), max_pool(3, 2, (1, 1))),
    shape("MaxPool2d, ceil_mode", lambda: nn.MaxPool2d(3, 2, ceil_mode=True), max_pool(3, 2, (0, 1))),
    shape("AvgPool2d", lambda: nn.AvgPool2d(2), average_pool(2, 2)),
    shape("AvgPool2d, padding", lambda: nn.AvgPool2d(3, 2, 1), average_pool(3, 2, 1)),
    shape(
        "AvgPool2d, count_include_pad=False",
        lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        average_pool(3, 2, 1, count=False),
    ),
    shape(
        "AdaptiveAvgPool2d(1)",
        lambda: nn.AdaptiveAvgPool2d(1),
        lambda x: x.mean((1, 2), keepdims=True),
    ),
    shape(
        "AdaptiveMaxPool2d(1)",
        lambda: nn.AdaptiveMaxPool2d(1),
        lambda x: x.max((1, 2), keepdims=True),
    ),
    shape(
        "Upsample, nearest x 2",
        lambda: nn.Upsample(scale_factor=2),
        lambda x: x.repeat(2, axis=1).repeat(2, axis=2),
    ),
    shape(
        "Resize, nearest-exact",
        lambda: Resize(11, 5, mode="nearest-exact"),
        lambda x: jax.image.resize(x, (x.shape[0], 11, 5, x.shape[3]), "nearest"),
    ),
    shape(
        "Resize, bilinear",
        lambda: Resize(11, 4, mode="bilinear", align_corners=False),
        lambda x: bilinear(x, 11, 4),
    ),
    shape(
        "Resize, bilinear, align_corners",
        lambda: Resize(11, 4, mode="bilinear", align_corners=True),
        lambda x: aligned(x, 11, 4),
    ),
    shape("PixelShuffle", lambda: nn.PixelShuffle(2), lambda x: pixel_shuffle(x, 2), (normal(2, 12, 3, 4),)),
    Case("Conv2d, Flatten, Linear", Flattened, FlaxFlattened, PLANE, layout="channels_last"),
]
