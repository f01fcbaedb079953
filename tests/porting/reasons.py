"""What libraries do and single files do not: each class has a few such reasons."""

import math

import torch
from torch import nn

from . import reasons_layers as layers
from .reasons_layers import Block as Wide
from .reasons_layers import create_activation, get_norm, initialize, use_fused


class Block(nn.Module):
    """A name that another file defines as well, and a base that comes later."""

    def __init__(self, width):
        super().__init__()
        self.wide = Wide(width)

    def forward(self, x):
        return x - self.wide(x)


class Initialized(nn.Module):
    """Initial values by functions of any name and depth."""

    inputs = ((3, 4),)

    def __init__(self, width=4, device=None, dtype=None):
        dd = {"device": device, "dtype": dtype}
        super().__init__()
        self.blocks = nn.ModuleList([Wide(width, **dd), Block(width), Wide(width, **dd)])
        self.table = nn.Parameter(torch.empty(width, width, **dd))
        self.fused = use_fused()
        self.start(0.1)
        self.scale_residuals()

    def start(self, std):
        bound = std * math.sqrt(3)
        layers.trunc_normal_(self.table, bound)
        self.apply(self._start_layer)
        for name, module in self.named_modules():
            if name.endswith("linear"):
                module.bias.data[:2] = bound
            elif isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.out_channels
                module.weight.data.normal_(0, math.sqrt(2.0 / fan_out))
        initialize(self)

    def _start_layer(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.mul_(0.5)

    def scale_residuals(self):
        def rescale(parameter, number):
            parameter.div_(math.sqrt(2.0 * number))

        with torch.no_grad():
            for number, block in enumerate(self.blocks):
                if isinstance(block, Wide):
                    rescale(block.linear.weight, number + 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.fused else -block(x)
        return x @ self.table


class Images(nn.Module):
    """A registry, a choice by name, BatchNorm by hand, a layer changed by a function, a conditional chain."""

    inputs = ((4, 3, 6, 6),)

    def __init__(self, width=4, pool="avg", norm="batch"):
        super().__init__()
        norm_layer = get_norm(norm)
        self.conv = layers.StandardConv2d(3, width, 3, stride=2, padding=1)
        layers.dilate(self.conv, rate=2)
        self.norm = norm_layer(width)
        self.act = create_activation("swish")
        if not pool:
            self.pool = nn.Identity()
        elif pool.startswith("fast") or norm != "batch":
            assert width == 1, "there is one channel"
            self.pool = nn.Flatten()
        elif pool == "avg":
            self.pool = nn.AdaptiveAvgPool2d(3)
        else:
            self.pool = nn.AdaptiveMaxPool2d(3)

    def forward(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        if x.is_cuda and torch.cuda.is_available():
            x = x.contiguous()
        elif x.device.type == "mps":
            x = x.cpu()
        return x.flatten(1)


class Biased(nn.Module):
    """A cache that evaluation fills and training empties, and a buffer that is set after it is made."""

    inputs = ((2, 3, 4),)

    def __init__(self, length=3):
        super().__init__()
        self.biases = nn.Parameter(torch.zeros(2, length))
        self.register_buffer("index", torch.empty(length, length, dtype=torch.long), persistent=False)
        self.index.copy_((torch.arange(length)[:, None] - torch.arange(length)).abs())
        self.cache = {}

    def train(self, mode=True):
        super().train(mode)
        if mode and self.cache:
            self.cache = {}
        return self

    def bias(self, device):
        if self.training:
            return self.biases[:, self.index]
        key = str(device)
        if key not in self.cache:
            self.cache[key] = self.biases[:, self.index]
        return self.cache[key]

    def forward(self, x):
        return x + self.bias(x.device).sum(0) @ x
