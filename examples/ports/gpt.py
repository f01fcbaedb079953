"""A GPT in Flax: gpt_torch.py line by line."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

import jaxpar.nn as nn
import jaxpar.nn.functional as F


class CausalSelfAttention(nnx.Module):
    def __init__(self, length, heads, width, dropout, rngs):
        self.c_attn = nnx.Linear(width, 3 * width, rngs=rngs)
        self.c_proj = nnx.Linear(width, width, rngs=rngs)
        self.attn_dropout = nn.Dropout(dropout, rngs=rngs)
        self.resid_dropout = nn.Dropout(dropout, rngs=rngs)
        self.heads = heads

    def __call__(self, x):
        B, T, C = x.shape
        split = jnp.split(self.c_attn(x), 3, axis=-1)
        q, k, v = (y.reshape(B, T, self.heads, -1).swapaxes(1, 2) for y in split)
        scores = q @ k.swapaxes(-2, -1) / math.sqrt(k.shape[-1])
        scores = jnp.where(jnp.tri(T, dtype=bool), scores, -jnp.inf)
        weights = self.attn_dropout(nnx.softmax(scores, axis=-1))
        y = (weights @ v).swapaxes(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nnx.Module):
    def __init__(self, length, heads, width, dropout, rngs):
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(length, heads, width, dropout, rngs)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nnx.Linear(width, 4 * width, rngs=rngs)
        self.c_proj = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nn.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(jax.nn.gelu(self.c_fc(self.ln_2(x)), approximate=True)))


class GPT(nnx.Module):
    def __init__(self, vocabulary, length, layers, heads, width, dropout, rngs):
        self.wte = nnx.Embed(vocabulary, width, rngs=rngs)
        self.wpe = nnx.Embed(length, width, rngs=rngs)
        self.drop = nn.Dropout(dropout, rngs=rngs)
        self.h = nnx.Sequential(*(Block(length, heads, width, dropout, rngs) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nnx.Linear(width, vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, tokens, targets=None):
        x = self.drop(self.wte(tokens) + self.wpe(jnp.arange(tokens.shape[1])))
        logits = self.lm_head(self.ln_f(self.h(x)))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1)
        return logits, loss


def init_weights(kind, tensors, generator):
    if kind in ("Linear", "Embedding"):
        generator.normal_(tensors["weight"], 0.0, 0.02)
    if kind == "Linear" and "bias" in tensors:
        tensors["bias"][...] = 0
