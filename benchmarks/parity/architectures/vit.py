"""Vision Transformer (Dosovitskiy et al. 2020): patches, a class token, blocks with the norm first.

The patches are a convolution in both; after it torch has (N, C, H, W) and must move channels last, Flax
is there already. `nn.MultiheadAttention` packs query, key and value; Flax has a layer for each.
"""

import flax.linen
import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn

from ..case import Case, normal

NORM = {"epsilon": 1e-6, "use_fast_variance": False}
"""The paper's own code is JAX: 1e-6 is Flax's default, and torch has to be told."""


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class FlaxBlock(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.norm1 = nnx.LayerNorm(width, **NORM, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, **NORM, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class ViT(nn.Module):
    def __init__(self, pixels, patch, width, heads, depth, classes):
        super().__init__()
        tokens = (pixels // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class FlaxViT(nnx.Module):
    def __init__(self, pixels, patch, width, heads, depth, classes, rngs):
        tokens = (pixels // patch) ** 2 + 1
        self.patches = nnx.Conv(3, width, (patch, patch), patch, padding="VALID", rngs=rngs)
        self.token = nnx.Param(0.02 * rngs.params.normal((1, 1, width)))
        self.position = nnx.Param(0.02 * rngs.params.normal((1, tokens, width)))
        self.blocks = nnx.List([FlaxBlock(width, heads, rngs) for _ in range(depth)])
        self.norm, self.head = nnx.LayerNorm(width, **NORM, rngs=rngs), nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x).reshape(len(x), -1, self.token.shape[-1])
        token = jnp.broadcast_to(self.token, (len(x), *self.token.shape[1:]))
        x = jnp.concatenate([token, x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class LinenBlock(flax.linen.Module):
    width: int
    heads: int

    @flax.linen.compact
    def __call__(self, x):
        y = flax.linen.LayerNorm(**NORM, name="norm1")(x)
        x = x + flax.linen.MultiHeadDotProductAttention(self.heads, name="attention")(y)
        y = flax.linen.LayerNorm(**NORM, name="norm2")(x)
        y = nnx.gelu(flax.linen.Dense(4 * self.width, name="up")(y), approximate=False)
        return x + flax.linen.Dense(self.width, name="down")(y)


class LinenViT(flax.linen.Module):
    patch: int
    width: int
    heads: int
    depth: int
    classes: int

    @flax.linen.compact
    def __call__(self, x):
        size = (self.patch, self.patch)
        x = flax.linen.Conv(self.width, size, self.patch, padding="VALID", name="patches")(x)
        x = x.reshape(len(x), -1, self.width)
        small = flax.linen.initializers.normal(0.02)
        token = self.param("token", small, (1, 1, self.width))
        position = self.param("position", small, (1, x.shape[1] + 1, self.width))
        token = jnp.broadcast_to(token, (len(x), 1, self.width))
        x = jnp.concatenate([token, x], 1) + position
        for i in range(self.depth):
            x = LinenBlock(self.width, self.heads, name=f"blocks_{i}")(x)
        x = flax.linen.LayerNorm(**NORM, name="norm")(x)
        return flax.linen.Dense(self.classes, name="head")(x[:, 0])


def vit(pixels=224, patch=16, width=192, heads=3, depth=12, classes=1000, rows=1):
    """The sizes are ViT-Tiny's."""
    size = (pixels, patch, width, heads, depth, classes)
    return Case(
        "ViT",
        lambda: ViT(*size),
        lambda rngs: FlaxViT(*size, rngs),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )


def vit_linen(pixels=224, patch=16, width=192, heads=3, depth=12, classes=1000, rows=1):
    return Case(
        "ViT, Linen",
        lambda: ViT(pixels, patch, width, heads, depth, classes),
        lambda rngs: LinenViT(patch, width, heads, depth, classes),
        (normal(rows, 3, pixels, pixels),),
        layout="channels_last",
    )
