"""A decoder in plain code, as a port of `bugs.plain.Plain` is written."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

WIDTH, HEADS, LENGTH, WINDOW = 8, 2, 8, 3


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(11, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH + 2, WIDTH, rngs=rngs)
        self.first = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.second = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.mix = nnx.Linear(LENGTH, LENGTH, rngs=rngs)
        self.gate = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.down = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 5, rngs=rngs)

    def __call__(self, tokens):
        n, t = tokens.shape
        places = jnp.broadcast_to(jnp.arange(t), (n, t))
        x = self.words(tokens) * WIDTH**0.5 + self.places(places)
        x = x + waves(t)
        y = self.first(x)
        x = x + self.attend(y, tokens != 0)
        x = x + self.mix(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        y = self.second(x)
        x = x + self.down(nnx.gelu(self.gate(y), approximate=False) * self.up(y))
        x = x + (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True, ddof=1)
        return self.head(x.mean(1))

    def attend(self, x, real):
        n, t, _ = x.shape
        q, k, v = (part.reshape(n, t, HEADS, -1) for part in jnp.split(self.qkv(x), 3, -1))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / (WIDTH // HEADS) ** 0.5
        apart = jnp.arange(t)[:, None] - jnp.arange(t)
        seen = (apart >= 0) & (apart < WINDOW) & real[:, None, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        y = jnp.einsum("nhqk,nkhd->nqhd", weights, v)
        return self.out(y.reshape(n, t, -1))


def waves(t):
    frequencies = 10000.0 ** (-np.arange(WIDTH) / WIDTH)
    return jnp.asarray(np.sin(np.outer(np.arange(t), frequencies)))


flax_module = Plain(nnx.Rngs(0))
