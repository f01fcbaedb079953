"""finite: which gradient is the first that is infinite or not a number. Traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp

NONE = -1
"""In place of a parameter's number: all gradients were finite so far."""


def first_bad(gradients: list) -> jax.Array:
    """The number of the first gradient that is not finite, or NONE."""
    finite = jnp.stack([is_finite(g) for g in gradients])
    return jnp.where(finite.all(), NONE, jnp.argmin(finite).astype(jnp.int32))


def is_finite(g: jax.Array) -> jax.Array:
    """As `isfinite(g).all()`, of which XLA makes a slow loop on CPU devices.

    0 times what is not finite is nan, and so is every sum with it. A matrix is multiplied with zeros as fast
    as memory is read; they are made of a row, because XLA leaves out a product with zeros that it knows.
    """
    if not g.size:
        return jnp.array(True)
    while g.ndim:
        g = g @ (g[(0,) * (g.ndim - 1)] * 0)
    return jnp.isfinite(g)
