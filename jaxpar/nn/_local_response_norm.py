"""LocalResponseNorm, which Flax does not have."""

from __future__ import annotations

import jax
from flax import nnx

from .functional import local_response_norm
from .functional._local_response_norm import check_size


class LocalResponseNorm(nnx.Module):
    """Divides each channel by what it and its neighbours amount to.

    Args:
      size: of the neighbourhood, in channels.
      alpha, beta, k: x / (k + alpha * mean of squares) ** beta.

    Input and output: [N, ..., C], at least three axes.

    Raises:
      RuntimeError: when it is made, with size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.LocalResponseNorm`, channels last. Source:
    torch/nn/modules/normalization.py.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        check_size(size)
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def __call__(self, x: jax.Array) -> jax.Array:
        return local_response_norm(x, self.size, self.alpha, self.beta, self.k)
