"""Two small healthy networks for the bugs: a picture and a sequence.

What is a function in Flax and a module in torch (a pool, an activation) is a module here too, under the same
path, so that it can be replayed and replaced alone.
"""

import functools

import jax
import jax.numpy as jnp
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

import jaxpar

from ..case import Apply, Case, integers, lengths, normal
from ..layers.pooling import aligned, average_pool


class Picture(nn.Module):
    """[N, 3, 8, 8] to [N, 5]."""

    def __init__(self, momentum):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4, momentum=momentum)
        self.act, self.pool = nn.GELU(), nn.AvgPool2d(3, 2, 1)
        self.grow = nn.ConvTranspose2d(4, 4, 3)
        self.resize = nn.Upsample((5, 5), mode="bilinear", align_corners=True)
        self.group = nn.GroupNorm(2, 4)
        self.flatten, self.drop, self.head = nn.Flatten(), nn.Dropout(0.25), nn.Linear(100, 5)

    def forward(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        x = self.group(self.resize(self.grow(x)))
        return self.head(self.drop(self.flatten(x)))


class FlaxPicture(nnx.Module):
    def __init__(self, rngs, momentum=0.1):
        self.conv = nnx.Conv(3, 4, (3, 3), 2, padding=1, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(4, momentum=momentum)
        self.act = Apply(functools.partial(nnx.gelu, approximate=False))
        self.pool = Apply(average_pool(3, 2, 1))
        self.grow = nnx.ConvTranspose(4, 4, (3, 3), padding=2, transpose_kernel=True, rngs=rngs)
        self.resize = Apply(lambda x: aligned(x, 5, 5))
        self.group = nnx.GroupNorm(4, 2, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.flatten = Apply(lambda x: x.transpose(0, 3, 1, 2).reshape(len(x), -1))
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.head = nnx.Linear(100, 5, rngs=rngs)

    def __call__(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        x = self.group(self.resize(self.grow(x)))
        return self.head(self.drop(self.flatten(x)))


class Attention(nn.Module):
    """Causal attention in plain sight."""

    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FlaxAttention(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.query, self.key = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.value, self.out = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.heads = heads
        self.split, self.weights = split, weights

    def __call__(self, x):
        q, k, v = (self.split(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        y = jnp.einsum("nhqk,nkhd->nqhd", self.weights(q, k), v)
        return self.out(y.reshape(x.shape))


def split(x, heads):
    return x.reshape(*x.shape[:-1], heads, -1)


def weights(q, k, scale=None, axis=-1, causal=True):
    """How much of each key a query takes: [N, H, T, T]."""
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / jnp.sqrt(scale or q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
    return jax.nn.softmax(scores, axis)


class Sequence(nn.Module):
    """Tokens to scores of 3 classes for each."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.words, self.positions = nn.Embedding(11, width, padding_idx=0), nn.Embedding(6, width)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.rms = nn.RMSNorm(width, eps=1e-5)
        self.up, self.act, self.down = nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, width)
        self.head, self.softmax = nn.Linear(width, 3), nn.LogSoftmax(-1)

    def forward(self, tokens):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = x + self.attention(self.norm(x))
        x = x + self.down(self.act(self.up(self.rms(x))))
        return self.softmax(self.head(x))


class FlaxSequence(nnx.Module):
    def __init__(self, rngs, width=8, heads=2):
        self.words, self.positions = nnx.Embed(11, width, rngs=rngs), nnx.Embed(6, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.attention = FlaxAttention(width, heads, rngs)
        self.rms = nnx.RMSNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.act = Apply(lambda x: nnx.leaky_relu(x, 0.2))
        self.head, self.softmax = nnx.Linear(width, 3, rngs=rngs), Apply(nnx.log_softmax)
        self.first, self.residual, self.padding = 0, True, 0

    def __call__(self, tokens):
        words = self.words(tokens)
        if self.padding is not None:  # torch's padding_idx: no gradient for that row
            real = (tokens != self.padding)[..., None]
            words = jnp.where(real, words, jax.lax.stop_gradient(words))
        places = jnp.arange(self.first, self.first + tokens.shape[1])
        x = self.attend(words + self.positions(places))
        x = x + self.down(self.act(self.up(self.rms(x))))
        return self.softmax(self.head(x))

    def attend(self, x):
        y = self.attention(self.norm(x))
        return x + y if self.residual else y


class Recurrent(nn.Module):
    """One recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.rnn = layer

    def forward(self, x):
        return self.rnn(x)[0]


class FlaxRecurrent(nnx.Module):
    def __init__(self, layer):
        self.rnn = layer

    def __call__(self, x):
        return self.rnn(x)[0]


class Masked(nn.Module):
    """torch's MultiheadAttention with padded keys."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, length):
        padding = torch.arange(x.shape[1]) >= length[:, None]
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class FlaxMasked(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.inverted = False

    def __call__(self, x, length):
        real = jnp.arange(x.shape[1]) < length[:, None]
        keep = ~real if self.inverted else real
        return self.attention(x, mask=keep[:, None, None, :])


PICTURE = Case(
    "a picture",
    lambda: Picture(0.1),
    FlaxPicture,
    (normal(3, 3, 8, 8, mean=0.5),),
    layout="channels_last",
)
CUMULATIVE = Case(
    "a picture, momentum None",
    lambda: Picture(None),
    lambda rngs: FlaxPicture(rngs, momentum=None),
    (normal(3, 3, 8, 8, mean=0.5),),
    layout="channels_last",
)
SEQUENCE = Case("a sequence", Sequence, FlaxSequence, (integers(11, 3, 5),))
LSTM = Case(
    "an LSTM",
    lambda: Recurrent(nn.LSTM(4, 3, batch_first=True)),
    lambda rngs: FlaxRecurrent(jaxpar.nn.LSTM(4, 3, batch_first=True, rngs=rngs)),
    (normal(2, 4, 4),),
)
GRU = Case(
    "a GRU",
    lambda: Recurrent(nn.GRU(4, 3, batch_first=True)),
    lambda rngs: FlaxRecurrent(jaxpar.nn.GRU(4, 3, batch_first=True, rngs=rngs)),
    (normal(2, 4, 4),),
)
MASKED = Case("masked attention", Masked, FlaxMasked, (normal(3, 4, 8), lengths(3, 3)))
