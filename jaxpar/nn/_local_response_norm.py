"""LocalResponseNorm, which Flax does not have."""

from __future__ import annotations

import dataclasses

from ._checks import check_size
from ._layer import FunctionLayer
from .functional import local_response_norm


@dataclasses.dataclass(eq=False, repr=False)
class LocalResponseNorm(FunctionLayer):
    """Divide each channel of [N, ..., C] by a power of its neighbours' mean square.

    Args:
      size: of the neighbourhood, in channels.
      alpha, beta, k: x / (k + alpha * mean of squares) ** beta.

    Raises: RuntimeError: at construction, for size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.LocalResponseNorm`, channels last. Source: torch/nn/modules/normalization.py.
    """

    _function = staticmethod(local_response_norm)
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __post_init__(self) -> None:
        check_size(self.size)
