from __future__ import annotations

import jax
import jax.numpy as jnp


def lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    """Return start + weight * (end - start) in the arrays' type, exact at both ends, as `torch.lerp` is."""
    # `near` is exact for weight 0 and `far` for weight 1. Both are computed because the weight may be traced.
    near = start + weight * (end - start)
    far = end - (end - start) * (1 - weight)
    return jnp.where(jnp.asarray(weight) < 0.5, near, far)
