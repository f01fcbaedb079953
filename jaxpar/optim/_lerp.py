"""lerp: torch's way between two arrays, from the nearer end."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    """start + weight * (end - start), in the arrays' type; `torch.lerp` keeps both ends exact like this."""
    near = start + weight * (end - start)
    far = end - (end - start) * (1 - weight)
    return jnp.where(jnp.asarray(weight) < 0.5, near, far)
