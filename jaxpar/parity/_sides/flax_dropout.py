"""Dropout in Flax: masks from outside instead of drawn ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..._typing import PyTree
from ...errors import MaskError
from .._weights.tree import FlaxModule
from .flax_calls import Handler


class Injection:
    """A handler that multiplies by the next mask wherever an active Dropout is called."""

    def __init__(self, masks: Sequence[jax.Array], otherwise: Handler | None = None):
        self.masks, self.used, self.otherwise = masks, 0, otherwise

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        if is_active_dropout(layer, kwargs):
            call = partial(self._masked, path, layer)
        if self.otherwise:
            return self.otherwise(path, layer, call, args, kwargs)
        return call(*args, **kwargs)

    def _masked(self, path: str, layer: FlaxModule, x: jax.Array, **kwargs: Any) -> jax.Array:
        # torch's mask says what is kept; the factor is the layer's own, so that a wrong rate shows.
        rate = rate_of(layer)
        factor = 1 / (1 - rate) if rate < 1 else 0.0
        return x * jnp.where(self._next(path, x) != 0, factor, 0).astype(x.dtype)

    def _next(self, path: str, x: jax.Array) -> jax.Array:
        if self.used == len(self.masks):
            raise MaskError(
                f"parity.compare: {path} is dropout call number {self.used + 1} in Flax, and torch made only "
                f"{len(self.masks)}. Compare in evaluation mode, or make both models drop in the same places."
            )
        mask = self.masks[self.used]
        self.used += 1
        return _fitting(path, mask, x.shape)

    def finish(self) -> None:
        if self.used != len(self.masks):
            raise MaskError(
                f"parity.compare: torch dropped {len(self.masks)} times and Flax {self.used} times. Is a "
                "Dropout missing, inside nnx.MultiHeadAttention(dropout_rate=...), or in evaluation mode?"
            )


def is_active_dropout(layer: FlaxModule, kwargs: Mapping[str, Any]) -> bool:
    """Whether this call would draw: a Dropout of flax or jaxpar.nn, not deterministic, with a rate."""
    if not type(layer).__name__.startswith("Dropout"):
        return False
    deterministic = kwargs.get("deterministic")
    if deterministic is None:
        deterministic = getattr(layer, "deterministic", False)
    return not deterministic and rate_of(layer) > 0


def rate_of(layer: FlaxModule) -> float:
    """Flax's layers call it `rate`, jaxpar.nn's `p` as torch does."""
    return getattr(layer, "rate", getattr(layer, "p", 0.0))


def _fitting(path: str, mask: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The mask in the layout of the array it is for: as it is, or with torch's channels at the end."""
    moved = jnp.moveaxis(mask, 1, -1) if mask.ndim > 2 else mask
    # Where both layouts fit an image, as in [2, 3, 3, 3], it is Flax's: that is where channels are last.
    if mask.shape == shape and (mask.ndim < 4 or moved.shape != shape):
        return mask
    if moved.shape == shape:
        return moved
    raise MaskError(
        f"parity.compare: dropout at {path} has {shape} in Flax, and its mask in torch {tuple(mask.shape)}: "
        "the models do not drop in the same places or order."
    )
