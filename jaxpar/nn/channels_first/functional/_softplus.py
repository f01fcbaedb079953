"""softplus with torch's beta and threshold; jax.nn.softplus has neither."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def softplus(x: jax.Array, beta: float = 1.0, threshold: float = 20.0) -> jax.Array:
    """torch's softplus, which is x itself where beta x is above the threshold."""
    # The exponential of what is not chosen must stay finite, for its derivative is multiplied by 0.
    small = jnp.minimum(beta * x, threshold)
    return jnp.where(beta * x > threshold, x, jnp.log1p(jnp.exp(small)) / beta)
