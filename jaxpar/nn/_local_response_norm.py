"""LocalResponseNorm, which Flax does not have."""

from __future__ import annotations

import dataclasses

import jax

from ._checks import check_size
from ._layer import Layer
from .functional import local_response_norm


@dataclasses.dataclass(eq=False, repr=False)
class LocalResponseNorm(Layer):
    """Divides each channel by a power of its neighbours' mean square.

    Args:
      size: of the neighbourhood, in channels.
      alpha, beta, k: x / (k + alpha * mean of squares) ** beta.

    Input and output: [N, ..., C], at least three axes.

    Raises: RuntimeError: at construction, for size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.LocalResponseNorm`, channels last. Source: torch/nn/modules/normalization.py.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __post_init__(self) -> None:
        check_size(self.size)

    def __call__(self, x: jax.Array) -> jax.Array:
        return local_response_norm(x, self.size, self.alpha, self.beta, self.k)
