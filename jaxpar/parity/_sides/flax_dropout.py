"""Dropout in Flax: masks from outside instead of drawn ones.

Layers called Dropout, Flax's attentions, `bernoulli` and `normal` of a stream of NNX take torch's masks and
noise. What draws with a key of its own, as `make_rng("dropout")` or `jax.random` in a model, cannot be
reached; `compare` refuses it where it matters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax.typing import DTypeLike

from ..._typing import PyTree
from ...errors import MaskError
from .._weights.tree import FlaxModule
from .flax_calls import Handler

SAME_CHANCE = 1e-2
"""How far torch's factor times our chance may be from 1: torch's is rounded to the type it computes in."""
MASKED = "_masked_by_torch"
"""Marks an attention function that takes torch's masks, where a layer calls another of its own class."""


class Injection:
    """A handler that multiplies by the next mask where an active Dropout or attention is called.

    `last` says whether the Flax model is given its channels last.
    """

    def __init__(self, masks: Sequence[jax.Array], otherwise: Handler | None = None, last: bool = True):
        self.masks, self.used, self.otherwise, self.last = masks, 0, otherwise, last

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        if is_active_dropout(layer, kwargs, args):
            call = partial(self._masked, path, layer)
        with self._inside(path, layer, kwargs):
            if self.otherwise:
                return self.otherwise(path, layer, call, args, kwargs)
            return call(*args, **kwargs)

    @contextmanager
    def _inside(self, path: str, layer: FlaxModule, kwargs: Mapping[str, Any]) -> Iterator[None]:
        """The layer with another `attention_fn` for its call, if it is an attention that would drop."""
        attention_fn = getattr(layer, "attention_fn", None)
        if not _drops_inside(layer, kwargs) or attention_fn is None or hasattr(attention_fn, MASKED):
            yield
            return
        # Past NNX's and Linen's own __setattr__: the layer is one of the compared copy's, and of this call.
        object.__setattr__(layer, "attention_fn", self._attention(path, layer, attention_fn))
        try:
            yield
        finally:
            object.__setattr__(layer, "attention_fn", attention_fn)

    def _attention(
        self, path: str, layer: FlaxModule, attention_fn: Callable[..., jax.Array]
    ) -> Callable[..., Any]:
        """The layer's attention function with torch's mask on its weights.

        The weights are what it gives for values that are the unit matrix, so that any function that is linear
        in its values will do, with groups of heads and causal ones.
        """

        @functools.wraps(attention_fn)
        def attention(query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> Any:
            kwargs |= {"deterministic": True, "dropout_rng": None}
            units = jnp.eye(value.shape[-3], dtype=value.dtype)[:, None]
            units = jnp.broadcast_to(units, (*value.shape[:-1], value.shape[-3]))
            weights = jnp.swapaxes(attention_fn(query, key, units, *args, **kwargs), -3, -2)
            rate = layer.dropout_rate
            mask = _of_attention(path, self._taken(path), weights.shape, layer)
            weights = weights * jnp.where(mask != 0, 1 / (1 - rate) if rate < 1 else 0.0, 0)
            heads = jnp.repeat(value, weights.shape[-3] // value.shape[-2], axis=-2)
            precision = kwargs.get("precision")
            outputs = jnp.einsum("...hqk,...khd->...qhd", weights, heads, precision=precision)
            return outputs.astype(query.dtype)

        setattr(attention, MASKED, True)
        return attention

    def _masked(self, path: str, layer: FlaxModule, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        # torch's mask says what is kept; the factor is the layer's own, so that a wrong rate shows.
        rate = rate_of(layer)
        factor = 1 / (1 - rate) if rate < 1 else 0.0
        return x * jnp.where(self._next(path, x) != 0, factor, 0).astype(x.dtype)

    def bernoulli(self, path: str, p: Any, shape: tuple[int, ...]) -> jax.Array:
        """What a stream draws: torch's zeros and ones, if its chance is torch's, and else only zeros."""
        factor = self._next(path, jax.ShapeDtypeStruct(shape, bool))
        return jnp.abs(factor * p - 1) < SAME_CHANCE

    def normal(self, path: str, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """The noise that a stream draws: torch's."""
        return self._next(path, jax.ShapeDtypeStruct(shape, dtype)).astype(dtype)

    def _next(self, path: str, x: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
        return _fitting(path, self._taken(path), x.shape, self.last)

    def _taken(self, path: str) -> jax.Array:
        if self.used == len(self.masks):
            raise MaskError(
                f"parity.compare: {path} is dropout call number {self.used + 1} in Flax, and torch made only "
                f"{len(self.masks)}. Compare in evaluation mode, or make both models drop in the same places."
            )
        self.used += 1
        return self.masks[self.used - 1]

    def finish(self) -> None:
        if self.used != len(self.masks):
            raise MaskError(
                f"parity.compare: torch dropped {len(self.masks)} times and Flax {self.used} times. Is a "
                "Dropout missing or in evaluation mode, or does Flax drop by a key of its own (make_rng, "
                "jax.random), where torch's masks do not reach?"
            )


def is_active_dropout(layer: FlaxModule, kwargs: Mapping[str, Any], args: tuple = ()) -> bool:
    """Whether this call would draw: a Dropout of flax or jaxpar.nn, not deterministic, with a rate."""
    if not type(layer).__name__.startswith("Dropout"):
        return False
    # Linen's takes the flag by position as well.
    options = {"deterministic": args[1], **kwargs} if args[1:] else kwargs
    return not _is_deterministic(layer, options) and rate_of(layer) > 0


def _drops_inside(layer: FlaxModule, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of Flax's attention would draw a mask for its weights."""
    if not isinstance(layer, (nnx.MultiHeadAttention, linen.MultiHeadDotProductAttention)):
        return False
    return layer.dropout_rate > 0 and not _is_deterministic(layer, kwargs)


def _is_deterministic(layer: FlaxModule, kwargs: Mapping[str, Any]) -> bool:
    deterministic = kwargs.get("deterministic")
    return bool(getattr(layer, "deterministic", False) if deterministic is None else deterministic)


def rate_of(layer: FlaxModule) -> float:
    """Flax's layers call it `rate`, jaxpar.nn's `p` as torch does."""
    return getattr(layer, "rate", getattr(layer, "p", 0.0))


def _of_attention(path: str, mask: jax.Array, shape: tuple[int, ...], layer: FlaxModule) -> jax.Array:
    """The mask for weights [..., heads, queries, keys]; torch may have batch and heads in one axis."""
    if layer.broadcast_dropout and math.prod(shape[:-2]) > 1:
        raise MaskError(
            f"parity.compare: {path} draws one mask for all rows and heads (broadcast_dropout=True), and "
            "torch one for each. Make it with broadcast_dropout=False, or compare with training=False."
        )
    if mask.ndim == 3 and mask.shape[1:] == shape[-2:] and len(mask) == math.prod(shape[:-2]):
        return mask.reshape(shape)
    if mask.shape == shape:
        return mask
    raise MaskError(
        f"parity.compare: the attention weights of {path} are {shape} in Flax, and the next mask in torch is "
        f"{tuple(mask.shape)}: the models do not drop in the same places or order."
    )


def _fitting(path: str, mask: jax.Array, shape: tuple[int, ...], last: bool) -> jax.Array:
    """The mask in the layout of the array it is for: as it is, or with torch's channels at the end."""
    moved = jnp.moveaxis(mask, 1, -1) if mask.ndim > 2 else mask
    # Where both layouts fit an image, as in [2, 3, 3, 3], it is that of the images which the model is given.
    if mask.shape == shape and (mask.ndim < 4 or moved.shape != shape or not last):
        return mask
    if moved.shape == shape:
        return moved
    raise MaskError(
        f"parity.compare: dropout at {path} has {shape} in Flax, and its mask in torch {tuple(mask.shape)}: "
        "the models do not drop in the same places or order."
    )
