"""BERT's encoder (Devlin et al. 2018): the norm after each residual, padding masked, a pooled first token.

torch masks with an additive -inf where there is padding; Flax's mask is True where there is a token.
"""

import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from ..case import Case, integers, lengths

NORM = {"epsilon": 1e-12, "use_fast_variance": False}


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x, padding):
        n, t, c = x.shape
        q, k, v = (
            layer(x).view(n, t, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        scores = scores.masked_fill(padding[:, None, None, :], float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        x = self.norm1(x + self.dense(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class FlaxLayer(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.query, self.key = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.value, self.dense = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.norm1 = nnx.LayerNorm(width, **NORM, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, **NORM, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)
        self.heads = heads

    def __call__(self, x, real):
        n, t, c = x.shape
        q, k, v = (layer(x).reshape(n, t, self.heads, -1) for layer in (self.query, self.key, self.value))
        y = nnx.dot_product_attention(q, k, v, mask=real[:, None, None, :]).reshape(n, t, c)
        x = self.norm1(x + self.dense(y))
        return self.norm2(x + self.down(nnx.gelu(self.up(x), approximate=False)))


class BERT(nn.Module):
    def __init__(self, vocabulary, context, width, heads, depth):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens, types, length):
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.words(tokens) + self.positions(places) + self.types(types))
        for layer in self.layers:
            x = layer(x, places >= length[:, None])
        return x, self.pooler(x[:, 0]).tanh()


class FlaxBERT(nnx.Module):
    def __init__(self, vocabulary, context, width, heads, depth, rngs):
        self.words = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Embed(context, width, rngs=rngs)
        self.types, self.norm = nnx.Embed(2, width, rngs=rngs), nnx.LayerNorm(width, **NORM, rngs=rngs)
        self.layers = nnx.List([FlaxLayer(width, heads, rngs) for _ in range(depth)])
        self.pooler = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, tokens, types, length):
        places = jnp.arange(tokens.shape[1])
        x = self.norm(self.words(tokens) + self.positions(places) + self.types(types))
        for layer in self.layers:
            x = layer(x, places < length[:, None])
        return x, nnx.tanh(self.pooler(x[:, 0]))


def bert(vocabulary=8192, context=64, width=768, heads=12, depth=4, rows=2):
    """BERT-base's width and heads; `depth` of its 12 layers, and a part of its vocabulary."""
    size = (vocabulary, context, width, heads, depth)
    return Case(
        "BERT encoder",
        lambda: BERT(*size),
        lambda rngs: FlaxBERT(*size, rngs),
        (integers(vocabulary, rows, context), integers(2, rows, context), lengths(context, rows)),
    )
