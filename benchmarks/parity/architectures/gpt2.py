"""GPT-2 (Radford et al. 2019): blocks with the norm first, one matrix for query, key and value, tied output.

The names are the original's: wte, wpe, h, ln_1, c_attn, c_proj, c_fc. GPT-2's GELU is tanh's form, which
is Flax's default and not torch's. c_attn's outputs are [query | key | value], each [heads x head].
"""

import jax.numpy as jnp
import optax
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from ..case import Case, integers

NORM = {"epsilon": 1e-5, "use_fast_variance": False}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (a.view(n, t, self.heads, -1).transpose(1, 2) for a in self.c_attn(x).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(n, t, c))


class FlaxAttention(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.c_attn = nnx.Linear(width, 3 * width, rngs=rngs)
        self.c_proj = nnx.Linear(width, width, rngs=rngs)
        self.heads = heads

    def __call__(self, x):
        n, t, c = x.shape
        q, k, v = (a.reshape(n, t, self.heads, -1) for a in jnp.split(self.c_attn(x), 3, -1))
        y = nnx.dot_product_attention(q, k, v, mask=nnx.make_causal_mask(x[..., 0]))
        return self.c_proj(y.reshape(n, t, c))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class FlaxMLP(nnx.Module):
    def __init__(self, width, rngs):
        self.c_fc = nnx.Linear(width, 4 * width, rngs=rngs)
        self.c_proj = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        return self.c_proj(nnx.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class FlaxBlock(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.ln_1, self.attn = nnx.LayerNorm(width, **NORM, rngs=rngs), FlaxAttention(width, heads, rngs)
        self.ln_2, self.mlp = nnx.LayerNorm(width, **NORM, rngs=rngs), FlaxMLP(width, rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, vocabulary, context, width, heads, depth):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class FlaxGPT2(nnx.Module):
    def __init__(self, vocabulary, context, width, heads, depth, rngs):
        self.wte = nnx.Embed(vocabulary, width, rngs=rngs)
        self.wpe = nnx.Embed(context, width, rngs=rngs)
        self.h = nnx.List([FlaxBlock(width, heads, rngs) for _ in range(depth)])
        self.ln_f = nnx.LayerNorm(width, **NORM, rngs=rngs)

    def __call__(self, tokens):
        x = self.wte(tokens) + self.wpe(jnp.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.wte.attend(self.ln_f(x))


def next_token(logits, tokens):
    """Cross-entropy of each token given those before it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def flax_next_token(logits, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def gpt2(vocabulary=8192, context=128, width=768, heads=12, depth=4, rows=1):
    """GPT-2's width and heads; a stack of `depth` of its 12 blocks, and a part of its vocabulary."""
    size = (vocabulary, context, width, heads, depth)
    return Case(
        "GPT-2 block stack",
        lambda: GPT2(*size),
        lambda rngs: FlaxGPT2(*size, rngs),
        (integers(vocabulary, rows, context),),
        (integers(vocabulary, rows, context),),
        (next_token, flax_next_token),
    )
