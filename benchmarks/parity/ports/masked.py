"""Attention with padded keys, as a port of `bugs.twins.Masked` is written."""

import jax.numpy as jnp
from flax import nnx


class Masked(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

    def __call__(self, x, length):
        real = jnp.arange(x.shape[1]) < length[:, None]
        return self.attention(x, mask=real[:, None, None, :])


flax_module = Masked(nnx.Rngs(0))
