"""softplus with torch's beta and threshold; jax.nn.softplus has neither."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def softplus(x: jax.Array, beta: float = 1.0, threshold: float = 20.0) -> jax.Array:
    """log(1 + exp(beta x)) / beta; x where beta x is above `threshold`. torch counterpart: `F.softplus`."""
    # `where` multiplies the derivative of the branch not taken by 0, so its exponential must be finite.
    small = jnp.minimum(beta * x, threshold)
    return jnp.where(beta * x > threshold, x, jnp.log1p(jnp.exp(small)) / beta)
