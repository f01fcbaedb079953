"""Dropout in Flax: torch's masks instead of drawn ones.

Models that draw with their own keys (`make_rng("dropout")`, `jax.random`) cannot be intercepted; `compare`
refuses them where the draws affect the outputs.
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

SAME_CHANCE = 1e-2  # of factor times probability from 1: torch rounds the factor to its compute type
MASKED = "_masked_by_torch"  # for layers that call a nested layer of their class, to patch once


class Injection:
    """A handler that multiplies by the next of torch's masks where an active Dropout is called."""

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
        attention_fn = getattr(layer, "attention_fn", None)
        if not _drops_inside(layer, kwargs) or attention_fn is None or hasattr(attention_fn, MASKED):
            yield
            return
        # object.__setattr__, because Linen modules are frozen and NNX would track the attribute. The layer
        # belongs to the compared copy, so no other caller can observe the change.
        object.__setattr__(layer, "attention_fn", self._attention(path, layer, attention_fn))
        try:
            yield
        finally:
            object.__setattr__(layer, "attention_fn", attention_fn)

    def _attention(
        self, path: str, layer: FlaxModule, attention_fn: Callable[..., jax.Array]
    ) -> Callable[..., Any]:
        @functools.wraps(attention_fn)
        def attention(query: jax.Array, key: jax.Array, value: jax.Array, *args: Any, **kwargs: Any) -> Any:
            # The function's own dropout is disabled; the mask is applied to the weights instead.
            kwargs |= {"deterministic": True, "dropout_rng": None}
            # The weights are the function's output for an identity matrix as values. This works for every
            # function that is linear in the values, grouped heads and causal masks included.
            units = jnp.eye(value.shape[-3], dtype=value.dtype)[:, None]
            units = jnp.broadcast_to(units, (*value.shape[:-1], value.shape[-3]))
            weights = jnp.swapaxes(attention_fn(query, key, units, *args, **kwargs), -3, -2)
            rate = layer.dropout_rate
            mask = self._taken(path, weights.shape, 1 - rate)
            mask = _of_attention(path, mask, weights.shape, layer)
            weights = weights * jnp.where(mask != 0, 1 / (1 - rate) if rate < 1 else 0.0, 0)
            heads = jnp.repeat(value, weights.shape[-3] // value.shape[-2], axis=-2)
            precision = kwargs.get("precision")
            outputs = jnp.einsum("...hqk,...khd->...qhd", weights, heads, precision=precision)
            return outputs.astype(query.dtype)

        setattr(attention, MASKED, True)
        return attention

    def _masked(self, path: str, layer: FlaxModule, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        # Only the zeros are torch's. The factor is the layer's, so that a wrong rate shows as a difference.
        rate = rate_of(layer)
        factor = 1 / (1 - rate) if rate < 1 else 0.0
        mask = self._next(path, x, 1 - rate)
        # Where one draw holds for a whole axis, torch's masks are only the same if they do not vary along it.
        for axis in getattr(layer, "broadcast_dims", ()):
            mask = jax.lax.slice_in_dim(mask, 0, 1, axis=axis)
        return x * jnp.where(mask != 0, factor, 0).astype(x.dtype)

    def bernoulli(self, path: str, p: Any, shape: tuple[int, ...]) -> jax.Array:
        """Return torch's zeros and ones if the probability is torch's too, else zeros only."""
        factor = self._next(path, jax.ShapeDtypeStruct(shape, bool), p)
        return jnp.abs(factor * p - 1) < SAME_CHANCE

    def normal(self, path: str, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return self._next(path, jax.ShapeDtypeStruct(shape, dtype), "normal").astype(dtype)

    def uniform(self, path: str, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return self._next(path, jax.ShapeDtypeStruct(shape, dtype), "uniform").astype(dtype)

    def _next(self, path: str, x: jax.Array | jax.ShapeDtypeStruct, chance: Any) -> jax.Array:
        return _fitting(path, self._taken(path, x.shape, chance), x.shape, self.last)

    def _taken(self, path: str, shape: tuple[int, ...], chance: Any) -> jax.Array:
        """Return the next mask; `chance` is the probability of ones, or a distribution's name."""
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


class Asked(Injection):
    """Collects the shapes of the masks that a model asks for, in torch's layout, and their probabilities."""

    def __init__(self, last: bool):
        super().__init__((), last=last)
        self.draws: list[tuple[tuple[int, ...], Any]] = []

    def _taken(self, path: str, shape: tuple[int, ...], chance: Any) -> jax.Array:
        if isinstance(chance, jax.core.Tracer):
            raise MaskError(f"parity: {path} draws with a probability that the model computes.")
        if self.last and len(shape) > 3:
            shape = (shape[0], shape[-1], *shape[1:-1])
        self.draws.append((shape, chance))
        return jnp.ones(shape)


def is_active_dropout(layer: FlaxModule, kwargs: Mapping[str, Any], args: tuple = ()) -> bool:
    # Equinox's draws by a key of the call, which torch's masks do not reach.
    if not is_dropout(layer) or hasattr(layer, "inference"):
        return False
    # Linen's takes the flag by position as well.
    options = {"deterministic": args[1], **kwargs} if args[1:] else kwargs
    return not _is_deterministic(layer, options) and rate_of(layer) > 0


def is_dropout(layer: FlaxModule) -> bool:
    return type(layer).__name__.startswith(("Dropout", "SpatialDropout"))


def _drops_inside(layer: FlaxModule, kwargs: Mapping[str, Any]) -> bool:
    if not isinstance(layer, (nnx.MultiHeadAttention, linen.MultiHeadDotProductAttention)):
        return False
    return layer.dropout_rate > 0 and not _is_deterministic(layer, kwargs)


def _is_deterministic(layer: FlaxModule, kwargs: Mapping[str, Any]) -> bool:
    if "training" in kwargs:  # as Keras passes it to each of its layers
        return not kwargs["training"]
    deterministic = kwargs.get("deterministic")
    return bool(getattr(layer, "deterministic", False) if deterministic is None else deterministic)


def rate_of(layer: FlaxModule) -> float:
    return getattr(layer, "rate", getattr(layer, "p", 0.0))


def _of_attention(path: str, mask: jax.Array, shape: tuple[int, ...], layer: FlaxModule) -> jax.Array:
    """Return the mask for weights (..., heads, queries, keys); torch may merge batch and heads."""
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
    """Return the mask in the layout of the masked array: unchanged, or with torch's channels moved last."""
    moved = jnp.moveaxis(mask, 1, -1) if mask.ndim > 2 else mask
    if mask.ndim == 3 and len(shape) == 4 and mask.size == math.prod(shape) and mask.shape[1:] == shape[2:]:
        return mask.reshape(shape)  # of attention, for which torch merges batch and heads
    # An image of shape (2, 3, 3, 3) fits both layouts. The layout of the model's inputs decides then.
    if mask.shape == shape and (mask.ndim < 4 or moved.shape != shape or not last):
        return mask
    if moved.shape == shape:
        return moved
    raise MaskError(
        f"parity.compare: dropout at {path} has {shape} in Flax, and its mask in torch {tuple(mask.shape)}: "
        "the models do not drop in the same places or order."
    )
