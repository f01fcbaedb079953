"""Activations with torch's names and arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...._arguments import Extended


def relu(x: jax.Array) -> jax.Array:
    """Max(x, 0), with the derivative 0 at 0. torch counterpart: `F.relu`."""
    return jax.nn.relu(x)


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x)). torch counterpart: `F.sigmoid`."""
    return jax.nn.sigmoid(x)


def silu(x: jax.Array) -> jax.Array:
    """x sigmoid(x). torch counterpart: `F.silu`."""
    return jax.nn.silu(x)


def tanh(x: jax.Array) -> jax.Array:
    """The hyperbolic tangent. torch counterpart: `F.tanh`."""
    return jnp.tanh(x)


def softmax(x: jax.Array, dim: int) -> jax.Array:
    """exp(x), divided by its sum along `dim`. torch counterpart: `F.softmax`, where `dim` is optional."""
    return jax.nn.softmax(x, axis=dim)


def log_softmax(x: jax.Array, dim: int) -> jax.Array:
    """The logarithm of `softmax`. torch counterpart: `F.log_softmax`, where `dim` is optional."""
    return jax.nn.log_softmax(x, axis=dim)


def softplus(x: jax.Array, beta: float = 1.0, threshold: Extended = 20.0) -> jax.Array:
    """log(1 + exp(beta x)) / beta; x where beta x is above `threshold`. torch counterpart: `F.softplus`."""
    # `where` multiplies the derivative of the branch not taken by 0, so its exponential must be finite.
    small = jnp.minimum(beta * x, threshold)
    return jnp.where(beta * x > threshold, x, jnp.log1p(jnp.exp(small)) / beta)
