"""A small transformer, as a port of `bugs.twins.Sequence` is written."""

import jax
import jax.numpy as jnp
from flax import nnx


class Attention(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.query, self.key = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.value, self.out = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.heads = heads

    def __call__(self, x):
        q = self.query(x).reshape(*x.shape[:-1], self.heads, -1)
        k = self.key(x).reshape(*x.shape[:-1], self.heads, -1)
        v = self.value(x).reshape(*x.shape[:-1], self.heads, -1)
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / jnp.sqrt(q.shape[-1])
        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1)
        y = jnp.einsum("nhqk,nkhd->nqhd", weights, v)
        return self.out(y.reshape(x.shape))


class LeakyReLU(nnx.Module):
    def __call__(self, x):
        return nnx.leaky_relu(x, negative_slope=0.2)


class LogSoftmax(nnx.Module):
    def __call__(self, x):
        return nnx.log_softmax(x)


class Sequence(nnx.Module):
    def __init__(self, rngs, width=8, heads=2):
        self.words, self.positions = nnx.Embed(11, width, rngs=rngs), nnx.Embed(6, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.attention = Attention(width, heads, rngs)
        self.rms = nnx.RMSNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.act = LeakyReLU()
        self.head, self.softmax = nnx.Linear(width, 3, rngs=rngs), LogSoftmax()

    def __call__(self, tokens):
        real = (tokens != 0)[..., None]
        words = self.words(tokens)
        words = jnp.where(real, words, jax.lax.stop_gradient(words))  # torch's padding_idx
        x = words + self.positions(jnp.arange(tokens.shape[1]))
        x = x + self.attention(self.norm(x))
        x = x + self.down(self.act(self.up(self.rms(x))))
        return self.softmax(self.head(x))


flax_module = Sequence(nnx.Rngs(0))
