"""The two means: exponential, and of equal weights. Integers are averaged as floats and cut, as in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from .._leafwise import lerp

AvgFn: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
MultiAvgFn: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array], jax.Array], Sequence[jax.Array]]


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """Return torch's function `decay * average + (1 - decay) * parameter` of one array.

    Raises: ValueError: a decay outside of [0, 1].

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_ema_avg_fn(0.5)(1.0, 3.0, 0)
    2.0
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")

    def ema_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return decay * averaged + (1 - decay) * current

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """Return `average + (1 - decay) * (parameter - average)`, by lerp, for lists of arrays of one type.

    torch's function writes into the first list. Raises: ValueError: a decay outside of [0, 1].
    """
    return _by_lerp(get_ema_avg_fn(decay), lambda num_averaged: 1 - decay)


def get_swa_avg_fn() -> AvgFn:
    """Return torch's function `average + (parameter - average) / (n + 1)` of one array: the mean of all.

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_swa_avg_fn()(1.0, 4.0, 2)
    2.0
    """

    def swa_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return averaged + (current - averaged) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """Return the mean of all parameters for lists of arrays of one type.

    torch's function writes into the first list.
    """
    return _by_lerp(get_swa_avg_fn(), lambda num_averaged: 1 / (num_averaged + 1))


def _by_lerp(of_integers: AvgFn, weight: Callable[[jax.Array], float | jax.Array]) -> MultiAvgFn:
    def update(
        averaged: Sequence[jax.Array], current: Sequence[jax.Array], num_averaged: jax.Array
    ) -> list[jax.Array]:
        pairs = zip(averaged, current, strict=True)
        if jnp.issubdtype(averaged[0].dtype, jnp.inexact):
            return [_lerp(a, p, weight(num_averaged)) for a, p in pairs]
        return [of_integers(a, p, num_averaged) for a, p in pairs]

    return update


def _lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    wide = jnp.promote_types(start.dtype, jnp.float32)
    return lerp(start.astype(wide), end.astype(wide), jnp.asarray(weight, jnp.finfo(wide).dtype))
