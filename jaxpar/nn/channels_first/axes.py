"""Conversion between torch's layout, [N, C, *S], and jaxpar.nn's, [N, *S, C]; XLA elides most transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..._typing import PyTree


def turned(function: Callable[[jax.Array], PyTree], x: jax.Array, axes: int | None = None) -> PyTree:
    """Apply a function of [N, *S, C] to an `x` in torch's layout, and return torch's layout.

    One row, [C, *S], is recognised by the number of spatial axes; with axes=None, x has a batch axis.
    """
    single = axes is not None and x.ndim == axes + 1
    y = function(jnp.moveaxis(x[None] if single else x, 1, -1))
    y = jax.tree.map(lambda output: jnp.moveaxis(output, -1, 1), y)
    return jax.tree.map(lambda output: output[0], y) if single else y


class ChannelsFirst(nnx.Module):
    """Mixin for torch's layout: list it before the jaxpar.nn layer among the bases."""

    axes: int | None = None
    """Number of spatial axes; None for all axes after N and C."""

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        layer = super().__call__
        return turned(lambda rows: layer(rows, *args, **kwargs), x, self.axes)
