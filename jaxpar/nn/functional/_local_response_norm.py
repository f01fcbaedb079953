"""local_response_norm: each channel divided by a power of its neighbours' mean square."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._checks import check_size


def local_response_norm(
    x: jax.Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> jax.Array:
    """x / (k + alpha * mean of x^2 over `size` neighbouring channels) ** beta.

    Args:
      x: [N, ..., C], at least three axes.
      size: of the neighbourhood: size // 2 channels before, the channel itself, and (size - 1) // 2 after.
        Channels beyond the ends count as zeros.
      alpha, beta, k: as in the formula.

    Raises: RuntimeError: size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.functional.local_response_norm`. Source: torch/nn/functional.py. The paper
    (Krizhevsky et al. 2012, 3.3) takes the sum, not the mean.
    """
    check_size(size)
    if x.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {x.ndim} dimensions)")
    C = x.shape[-1]
    borders = [(0, 0)] * (x.ndim - 1) + [(size // 2, (size - 1) // 2)]
    squares = jnp.pad(jnp.square(x), borders)
    total = sum(squares[..., i : i + C] for i in range(size))
    return x / (total / size * alpha + k) ** beta
