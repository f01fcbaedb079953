"""Images, [N, H, W, C], are the arrays with four axes; all others have torch's layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..channels_first.axes import ChannelsFirst

AXES = 4
"""Number of axes of a batch of images."""


class Images(nnx.Module):
    """Mixin for images [N, H, W, C]: list it before the channels_first layer among the bases."""

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        layer: Any = super(ChannelsFirst, self) if x.ndim == AXES else super()
        return layer.__call__(x, *args, **kwargs)


def to_torch(x: jax.Array) -> jax.Array:
    """Transpose images to [N, C, H, W]; return other arrays unchanged."""
    return jnp.moveaxis(x, -1, 1) if x.ndim == AXES else x


def from_torch(x: jax.Array) -> jax.Array:
    """Transpose images to [N, H, W, C]; return other arrays unchanged."""
    return jnp.moveaxis(x, 1, -1) if x.ndim == AXES else x
