"""Conversion between torch's layout, [N, C, *S], and jaxpar.nn's, [N, *S, C]; XLA elides most transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..._typing import PyTree
from .._layouts import SHAPES


def turned(
    function: Callable[[jax.Array], PyTree],
    x: jax.Array,
    name: str,
    axes: int | None = None,
    error: type[Exception] | None = None,
) -> PyTree:
    """Apply a function of [N, *S, C] to an `x` in torch's layout, and return torch's layout.

    One row, [C, *S], is recognised by the number of spatial axes; with axes=None, x has a batch axis. Other
    numbers of axes raise `error`, unless it is None, with the layer's or function's `name`.
    """
    if x.ndim < 2 or (error is not None and axes is not None and x.ndim not in (axes + 1, axes + 2)):
        row = "" if axes is None else f" or {SHAPES[axes].replace('N, ', '')}"
        raise (error or RuntimeError)(f"{name}: x has shape {x.shape}; it must be {SHAPES[axes]}{row}.")
    single = axes is not None and x.ndim == axes + 1
    y = function(jnp.moveaxis(x[None] if single else x, 1, -1))
    y = jax.tree.map(lambda output: jnp.moveaxis(output, -1, 1), y)
    return jax.tree.map(lambda output: output[0], y) if single else y


class ChannelsFirst(nnx.Module):
    """Mixin for torch's layout: list it before the jaxpar.nn layer among the bases."""

    axes: int | None = None
    """Number of spatial axes; None for all axes after N and C."""
    rank_error: type[Exception] | None = None
    """torch's error for an input that is neither a batch nor one row; None if the layer itself raises."""

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        layer = super().__call__
        name = type(self).__name__
        return turned(lambda rows: layer(rows, *args, **kwargs), x, name, self.axes, self.rank_error)
