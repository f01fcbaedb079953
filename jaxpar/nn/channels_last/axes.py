"""Images, [N, H, W, C], by their number of axes; everything else has torch's layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..channels_first.axes import ChannelsFirst

AXES = 4
"""Axes of a batch of images."""


class Images(nnx.Module):
    """Before a layer of channels_first among the bases: the same for images [N, H, W, C]."""

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        layer: Any = super(ChannelsFirst, self) if x.ndim == AXES else super()
        return layer.__call__(x, *args, **kwargs)


def to_torch(x: jax.Array) -> jax.Array:
    """Images as [N, C, H, W]; other arrays as they are."""
    return jnp.moveaxis(x, -1, 1) if x.ndim == AXES else x


def from_torch(x: jax.Array) -> jax.Array:
    """Images as [N, H, W, C]; other arrays as they are."""
    return jnp.moveaxis(x, 1, -1) if x.ndim == AXES else x
