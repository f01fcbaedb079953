"""A module whose constructor sets initial values in the ways of GPT, ViT and diffusion models."""

import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        q, k, v = self.c_attn(self.ln(x)).chunk(3, -1)
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return x + self.gain * self.c_proj(y) + self.c_proj(y)


class GPT(nn.Module):
    def __init__(self, width=8, depth=3):
        super().__init__()
        self.wte = nn.Embedding(11, width)
        self.wpe = nn.Parameter(torch.empty(5, width))
        self.h = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.ada = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, 11, bias=False)
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * depth))
        nn.init.trunc_normal_(self.wpe, std=0.02)
        nn.init.zeros_(self.ada.weight)
        self.ada.weight.data[:2].fill_(0.25)
        nn.init.orthogonal(self.head.weight, 0.1)  # the alias of older code

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(0.0, 0.02)

    def forward(self, t):
        x = self.wte(t) + self.wpe
        for block in self.h:
            x = block(x)
        shift, scale = self.ada(self.norm(x)).chunk(2, -1)
        return self.head(x * (1 + scale) + shift)


class Interleaved(nn.Module):
    """Its first block is filled before its second one is made."""

    def __init__(self):
        super().__init__()
        self.first = Filled()
        self.second = Filled()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.second(self.first(x))
        return self.attention(x, x, x)[0]


class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        nn.init.kaiming_normal_(self.layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.layer(x)
