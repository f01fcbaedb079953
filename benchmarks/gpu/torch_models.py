"""ResNet-50 and GPT-2 in torch: the twins of those of published.py, written as torch's users write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ask import Images, Words
from torch import nn


class Convolution(nn.Sequential):
    """A convolution without bias, its BatchNorm, and ReLU if asked for."""

    def __init__(self, inside, outside, size, stride=1, relu=True):
        conv = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outside), nn.ReLU(inplace=True) if relu else nn.Identity())


class Bottleneck(nn.Module):
    """Version 1.5: the stride is in the 3x3 convolution."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.a = Convolution(inside, width, 1)
        self.b = Convolution(width, width, 3, stride)
        self.c = Convolution(width, 4 * width, 1, relu=False)
        same = inside == 4 * width
        self.short = nn.Identity() if same else Convolution(inside, 4 * width, 1, stride, False)

    def forward(self, x):
        return torch.relu(self.c(self.b(self.a(x))) + self.short(x))


def resnet(shape: Images) -> nn.Module:
    layers, inside = [Convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate(shape.depths):
        for i in range(depth):
            layers.append(Bottleneck(inside, 64 * 2**stage, 2 if stage and not i else 1))
            inside = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3 * self.heads, width // self.heads).transpose(1, 2).chunk(3, 1)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class GPT(nn.Module):
    """The matrix of the words is also that of the answer."""

    def __init__(self, shape: Words):
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return F.linear(self.norm(self.blocks(x)), self.words.weight)


def classified(logits, labels):
    return F.cross_entropy(logits.float(), labels, label_smoothing=0.1)


def next_word(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
