"""Attention. torch packs query, key and value in one matrix and masks where True; Flax keeps where True."""

import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from ..case import Apply, Case, lengths, normal

WIDTH, HEADS = 8, 2
QUERY, MEMORY = normal(3, 5, WIDTH), normal(3, 7, WIDTH)


class Attention(nn.Module):
    """Of x to itself, or of x to `memory`."""

    def __init__(self, bias=True, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True, **options)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        return self.attention(x, memory, memory, need_weights=False)[0]


class FlaxAttention(nnx.Module):
    def __init__(self, rngs, bias=True, memory_width=WIDTH):
        self.attention = nnx.MultiHeadAttention(
            HEADS, WIDTH, in_kv_features=memory_width, use_bias=bias, decode=False, rngs=rngs
        )

    def __call__(self, x, memory=None):
        return self.attention(x, memory)


class Causal(Attention):
    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=later, need_weights=False)[0]


class FlaxCausal(FlaxAttention):
    def __call__(self, x):
        return self.attention(x, mask=nnx.make_causal_mask(x[..., 0]))


class Padded(Attention):
    """The keys beyond a row's length are no keys."""

    def forward(self, x, length):
        padding = torch.arange(x.shape[1]) >= length[:, None]
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class FlaxPadded(FlaxAttention):
    def __call__(self, x, length):
        real = jnp.arange(x.shape[1]) < length[:, None]
        return self.attention(x, mask=real[:, None, None, :])


class Functional(nn.Module):
    """torch's function has heads before tokens, (N, H, T, D); Flax's has them after, (N, T, H, D)."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def functional(q, k, v):
    q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    mask = nnx.make_causal_mask(q[:, :, 0, 0])
    return nnx.dot_product_attention(q, k, v, mask=mask).swapaxes(1, 2)


class FlaxEncoderLayer(nnx.Module):
    """torch's TransformerEncoderLayer without dropout, its names kept."""

    def __init__(self, rngs, norm_first):
        self.self_attn = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.linear1 = nnx.Linear(WIDTH, 16, rngs=rngs)
        self.linear2 = nnx.Linear(16, WIDTH, rngs=rngs)
        self.norm1 = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.norm_first = norm_first

    def __call__(self, x):
        if self.norm_first:
            x = x + self.self_attn(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.self_attn(x))
        return self.norm2(x + self.feed(x))

    def feed(self, x):
        return self.linear2(nnx.relu(self.linear1(x)))


def encoder_layer(name, norm_first):
    return Case(
        name,
        lambda: nn.TransformerEncoderLayer(
            WIDTH, HEADS, 16, dropout=0.0, batch_first=True, norm_first=norm_first
        ),
        lambda rngs: FlaxEncoderLayer(rngs, norm_first),
        (QUERY,),
    )


CASES = [
    Case("MultiheadAttention, self", Attention, FlaxAttention, (QUERY,)),
    Case(
        "MultiheadAttention without bias",
        lambda: Attention(bias=False),
        lambda rngs: FlaxAttention(rngs, bias=False),
        (QUERY,),
    ),
    Case("MultiheadAttention, cross", Attention, FlaxAttention, (QUERY, MEMORY)),
    Case(
        "MultiheadAttention, kdim and vdim",
        lambda: Attention(kdim=6, vdim=6),
        lambda rngs: FlaxAttention(rngs, memory_width=6),
        (QUERY, normal(3, 7, 6)),
    ),
    Case("MultiheadAttention, causal", Causal, FlaxCausal, (QUERY,)),
    Case("MultiheadAttention, key padding", Padded, FlaxPadded, (QUERY, lengths(5, 3))),
    Case(
        "scaled_dot_product_attention",
        Functional,
        lambda rngs: Apply(functional),
        tuple(normal(3, HEADS, 5, 4) for _ in range(3)),
    ),
    encoder_layer("TransformerEncoderLayer", norm_first=False),
    encoder_layer("TransformerEncoderLayer, norm_first", norm_first=True),
]
