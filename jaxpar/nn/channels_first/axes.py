"""Between torch's layout, [N, C, *S], and that of jaxpar.nn, [N, *S, C].

XLA makes no copies of it where it can choose the layout of the arrays between two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..._typing import PyTree


def turned(function: Callable[[jax.Array], PyTree], x: jax.Array, axes: int | None = None) -> PyTree:
    """What a function of [N, *S, C] makes of an `x` in torch's layout; its results are in torch's layout.

    Args:
      function: returns arrays [N, *T, D], one or several.
      x: [N, C, *S]; or one row, [C, *S], where `axes` says how many S there are.
      axes: the number of spatial axes; None if x always has rows.
    """
    single = axes is not None and x.ndim == axes + 1
    y = function(jnp.moveaxis(x[None] if single else x, 1, -1))
    y = jax.tree.map(lambda output: jnp.moveaxis(output, -1, 1), y)
    return jax.tree.map(lambda output: output[0], y) if single else y


class ChannelsFirst(nnx.Module):
    """Before a layer of jaxpar.nn among the bases: the same layer in torch's layout."""

    axes: int | None = None
    """How many spatial axes there are; None: as many as x has behind N and C."""

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        layer = super().__call__
        return turned(lambda rows: layer(rows, *args, **kwargs), x, self.axes)
