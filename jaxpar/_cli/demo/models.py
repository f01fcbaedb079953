"""The same CNN in Flax and in torch, with the same layer names."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING

import jax
from flax import nnx

import jaxpar

if TYPE_CHECKING:
    import torch


class DigitsCNN(nnx.Module):
    """Logits [B, 10] of images [B, 8, 8]; `momentum` is BatchNorm's, as torch defines it."""

    def __init__(self, rngs: nnx.Rngs, momentum: float = 0.1):
        conv = functools.partial(jaxpar.nn.Conv, kernel_size=(3, 3), padding=1, bias=False, rngs=rngs)
        self.conv1, self.norm1 = conv(1, 8), jaxpar.nn.BatchNorm(8, momentum=momentum)
        self.conv2, self.norm2 = conv(8, 16), jaxpar.nn.BatchNorm(16, momentum=momentum)
        self.linear = nnx.Linear(16 * 4 * 4, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(images[..., None])))
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        # torch flattens channels first, so the linear layer's rows have the same order only this way.
        return self.linear(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


def torch_cnn(seed: int) -> torch.nn.Module:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[tuple[str, nn.Module]] = [
            ("channel", nn.Unflatten(1, (1, 8))),
            ("conv1", nn.Conv2d(1, 8, 3, padding=1, bias=False)),
            ("norm1", nn.BatchNorm2d(8)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(8, 16, 3, padding=1, bias=False)),
            ("norm2", nn.BatchNorm2d(16)),
            ("relu2", nn.ReLU()),
            ("pool", nn.AvgPool2d(2)),
            ("flatten", nn.Flatten()),
            ("linear", nn.Linear(16 * 4 * 4, 10)),
        ]
        return nn.Sequential(OrderedDict(layers)).double()
