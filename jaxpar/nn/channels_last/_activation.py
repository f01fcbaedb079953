"""The activation that has a number for each channel."""

from __future__ import annotations

import jax

from .. import _activation
from .. import channels_first as first
from .axes import AXES


class PReLU(first.PReLU):
    """[N, H, W, C], or [N, C, ...]; the arguments are those of `jaxpar.nn.PReLU`.

    torch counterpart: `torch.nn.PReLU`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return _activation.PReLU.__call__(self, x) if x.ndim == AXES else super().__call__(x)
