"""normalize: vectors of length one."""

from __future__ import annotations

import jax

from ._reduction import at_least
from ._similarity import norm


def normalize(x: jax.Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> jax.Array:
    """x divided by its p-norm along an axis, which is taken to be at least eps.

    Args:
      x: [...].
      p: of the norm, `float("inf")` too.
      dim: the axis of the vectors, torch's default; for data with channels last say -1.
      eps: the least norm.

    Returns:
      x's shape. The gradient of a vector of zeros is 1 / eps times what comes in, as in torch; by
      JAX's own `jnp.linalg.norm` it would be NaN.

    torch counterpart: `torch.nn.functional.normalize`.
    """
    return x / at_least(norm(x, p, dim, keepdims=True), eps)
