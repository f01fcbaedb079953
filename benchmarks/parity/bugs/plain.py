"""Bugs of plain code: what a model computes by hand, between its layers, where no layer has an option for it.

The twin is a small decoder that writes out everything: positions, masks, attention, an activation, a norm.
Its axes have equal lengths where they can, so that nothing raises.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

from ..case import Case, integers, normal
from .bug import Bug, changed

WIDTH, HEADS, LENGTH, WINDOW = 8, 2, 8, 3
NORM = {"epsilon": 1e-5, "use_fast_variance": False}
FREQUENCIES = 10000.0 ** (-np.arange(WIDTH) / WIDTH)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Plain(nn.Module):
    """Tokens to 5 scores of a row."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, WIDTH), nn.Embedding(LENGTH + 2, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        x = self.words(tokens) * math.sqrt(WIDTH) + self.places(places[None])
        x = x + torch.sin(torch.outer(places.double(), torch.tensor(FREQUENCIES))).to(x.dtype)
        x = x + self.attend(self.first(x), tokens != 0)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        y = self.second(x)
        x = x + self.down(gelu(self.gate(y)) * self.up(y))
        x = x + (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        return self.head(x.mean(1))

    def attend(self, x, real):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        apart = torch.arange(t)[:, None] - torch.arange(t)
        seen = (apart >= 0) & (apart < WINDOW) & real[:, None, None]
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        y = scores.masked_fill(~seen, -1e9).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, WIDTH))


class FlaxPlain(nnx.Module):
    """The functions that the bugs replace are attributes."""

    def __init__(self, rngs):
        linear = functools.partial(nnx.Linear, rngs=rngs)
        self.words = nnx.Embed(11, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH + 2, WIDTH, rngs=rngs)
        self.first, self.second = (
            nnx.LayerNorm(WIDTH, **NORM, rngs=rngs),
            nnx.LayerNorm(WIDTH, **NORM, rngs=rngs),
        )
        self.qkv, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.mix = linear(LENGTH, LENGTH)
        self.gate, self.up = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.down, self.head = linear(WIDTH, WIDTH), linear(WIDTH, 5)
        self.scale, self.root, self.act = WIDTH**0.5, (WIDTH // HEADS) ** 0.5, exact
        self.count, self.seen, self.table = jnp.arange, window, table
        self.split, self.merge, self.parts = split, merge, thirds
        self.axis, self.over, self.ddof, self.turn, self.residual = -1, 1, 1, turn, both

    def __call__(self, tokens):
        n, t = tokens.shape
        places = jnp.broadcast_to(self.count(t), (n, t))
        x = self.words(tokens) * self.scale + self.places(places)
        x = x + self.table(t)
        y = self.first(x)
        x = self.residual(x, y, self.attend(y, tokens != 0))
        x = x + self.turn(self.mix(self.turn(x)))
        y = self.second(x)
        x = x + self.down(self.act(self.gate(y)) * self.up(y))
        x = x + (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True, ddof=self.ddof)
        return self.head(x.mean(self.over))

    def attend(self, x, real):
        q, k, v = (self.split(part) for part in self.parts(self.qkv(x)))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / self.root
        seen = self.seen(x.shape[1], real[:, None, None])
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), self.axis)
        return self.out(self.merge(jnp.einsum("nhqk,nkhd->nqhd", weights, v)))


def exact(x):
    return nnx.gelu(x, approximate=False)


def window(t, real, *, first=0, last=WINDOW - 1, causal=True):
    """The distances from `first` to `last` are seen."""
    apart = jnp.arange(t)[:, None] - jnp.arange(t)
    seen = apart <= last
    return (seen & (apart >= first) if causal else seen) & real


def unpadded(t, real):
    return window(t, jnp.ones_like(real))


def padding(t, real):
    return window(t, ~real)


def table(t):
    return jnp.sin(jnp.outer(jnp.arange(t), FREQUENCIES))


def half(t):
    """Made in NumPy and saved in float16."""
    return np.sin(np.outer(np.arange(t), FREQUENCIES)).astype(np.float16)


def split(x):
    return x.reshape(*x.shape[:-1], HEADS, -1)


def crosswise(x):
    return x.reshape(*x.shape[:-1], -1, HEADS).swapaxes(-1, -2)


def merge(y):
    return y.reshape(*y.shape[:2], -1)


def unturned(y):
    """[N, H, T, size] put together as it lies."""
    return y.transpose(0, 2, 1, 3).reshape(*y.shape[:2], -1)


def thirds(x):
    return jnp.split(x, 3, -1)


def by_head(x):
    """Each head's query, key and value beside each other."""
    parts = x.reshape(*x.shape[:-1], HEADS, 3, -1)
    return [parts[..., i, :].reshape(*x.shape[:-1], -1) for i in range(3)]


def value_first(x):
    q, k, v = thirds(x)
    return v, q, k


def turn(x):
    return x.transpose(0, 2, 1)


def both(x, y, z):
    return x + z


def backwards(t):
    return jnp.arange(t)[::-1]


def counting(first):
    return lambda t: jnp.arange(t) + first


def exchange(one, other):
    """Two layers in each other's place; their weights stay under their names."""

    def plant(case):
        class Wrong(FlaxPlain):
            def __call__(self, tokens):
                a, b = getattr(self, one), getattr(self, other)
                setattr(self, one, b), setattr(self, other, a)
                try:
                    return super().__call__(tokens)
                finally:
                    setattr(self, one, a), setattr(self, other, b)

        return dataclasses.replace(case, flax=Wrong)

    return plant


PLAIN = Case("a decoder in plain code", Plain, FlaxPlain, (integers(11, 3, LENGTH),))


class Between(nn.Module):
    """An activation written by hand, between two layers."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, 6), nn.Linear(6, 3), function

    def forward(self, x):
        return self.b(self.function(20 * self.a(x)))


class FlaxBetween(nnx.Module):
    def __init__(self, function, rngs):
        self.a, self.b, self.function = nnx.Linear(6, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs), function

    def __call__(self, x):
        return self.b(self.function(20 * self.a(x)))


def between(name, theirs, ours):
    return Case(
        f"{name}, by hand", lambda: Between(theirs), lambda rngs: FlaxBetween(ours, rngs), (normal(4, 6),)
    )


ROOT = math.sqrt(2 / math.pi)
TANH = between(
    "gelu in tanh's form", lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))), nnx.gelu
)
SILU = between("silu", lambda x: x / (1 + torch.exp(-x)), nnx.silu)
RELU6 = between("relu6", lambda x: x.clamp(0, 6), nnx.relu6)
LEAKY = between(
    "leaky_relu",
    lambda x: torch.where(x > 0, x, 0.2 * x),
    functools.partial(nnx.leaky_relu, negative_slope=0.2),
)
QUICK = between("quick gelu", lambda x: x * torch.sigmoid(1.702 * x), lambda x: x * nnx.sigmoid(1.702 * x))


def acting(function):
    return changed("", function=function)


BUGS = [
    Bug("gelu by hand, tanh's form", PLAIN, changed("", act=nnx.gelu), "acts as gelu(approximate=True)"),
    Bug("tanh's gelu by hand, exact", TANH, acting(exact), "acts as gelu(approximate=False)"),
    Bug("silu by hand, gelu", SILU, acting(exact), "silu, written by hand"),
    Bug("relu6 by hand, relu", RELU6, acting(nnx.relu), "acts as relu)"),
    Bug("leaky slope 0.01 for 0.2", LEAKY, acting(nnx.leaky_relu), "acts as leaky_relu(negative_slope=0.01)"),
    Bug("quick gelu, exact", QUICK, acting(exact), "acts as gelu(approximate=False)"),
    Bug("embedding not scaled", PLAIN, changed("", scale=1.0), "the scale is 2.82843 (it is left out)"),
    Bug(
        "scores over the root of the width", PLAIN, changed("", root=WIDTH**0.5), "(it is 1 / the root of 8)"
    ),
    Bug("scores not scaled", PLAIN, changed("", root=1.0), "(it is left out)"),
    Bug("positions from 1, in [B, S]", PLAIN, changed("", count=counting(1)), "shifted by 1"),
    Bug("positions from 2", PLAIN, changed("", count=counting(2)), "shifted by 2"),
    Bug("positions reversed", PLAIN, changed("", count=backwards), "reversed"),
    Bug("window, one key more", PLAIN, changed("", seen=functools.partial(window, last=WINDOW)), "<="),
    Bug(
        "window, one key fewer",
        PLAIN,
        changed("", seen=functools.partial(window, last=WINDOW - 2)),
        "off by one",
    ),
    Bug(
        "causal, without the query's own key",
        PLAIN,
        changed("", seen=functools.partial(window, first=1)),
        "compares by >",
    ),
    Bug("not causal", PLAIN, changed("", seen=functools.partial(window, causal=False)), "is left out"),
    Bug("padding is seen", PLAIN, changed("", seen=unpadded), "is left out"),
    Bug("padding inverted", PLAIN, changed("", seen=padding), "!="),
    Bug("softmax over heads", PLAIN, changed("", axis=1), "it acts on axis 1"),
    Bug("mean over features", PLAIN, changed("", over=2), "it acts on axis 2"),
    Bug("std divided by n", PLAIN, changed("", ddof=0), "std divides by n - 1"),
    Bug(
        "heads split crosswise, in plain code",
        PLAIN,
        changed("", split=crosswise),
        "(it is split into (4, 2))",
    ),
    Bug("heads put together as they lie", PLAIN, changed("", merge=unturned), "axes 1 and 2 are swapped"),
    Bug("value, query, key", PLAIN, changed("", parts=value_first), "in order (2, 0, 1)"),
    Bug("query, key and value by head", PLAIN, changed("", parts=by_head), "read as (3, 2, 4)"),
    Bug(
        "axes of equal length not swapped",
        PLAIN,
        changed("", turn=lambda x: x),
        "transpose is done (it is left out)",
    ),
    Bug("no residual", PLAIN, changed("", residual=lambda x, y, z: z), "left out"),
    Bug(
        "residual from behind the norm",
        PLAIN,
        changed("", residual=lambda x, y, z: y + z),
        "one is what first returns",
    ),
    Bug("float16 table", PLAIN, changed("", table=half), "rounded to float16"),
    Bug("two linear layers exchanged", PLAIN, exchange("gate", "up"), "gate and up are where torch has them"),
    Bug(
        "two norms exchanged", PLAIN, exchange("first", "second"), "first and second are where torch has them"
    ),
]
