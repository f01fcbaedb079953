"""The two means: exponential, and of equal weights. Integers are averaged as floats and cut, as in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from .._lerp import lerp

AvgFn: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
MultiAvgFn: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array], jax.Array], Sequence[jax.Array]]


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """Return the function `decay * average + (1 - decay) * parameter` of one array.

    Raises: ValueError: a decay outside of [0, 1].

    torch counterpart: `torch.optim.swa_utils.get_ema_avg_fn`.

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_ema_avg_fn(0.5)(1.0, 3.0, 0)
    2.0
    """
    _check_decay(decay)

    def ema_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return decay * averaged + (1 - decay) * current

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """Return `average + (1 - decay) * (parameter - average)`, by lerp, for lists of arrays of one type.

    Raises: ValueError: a decay outside of [0, 1].

    torch counterpart: `torch.optim.swa_utils.get_ema_multi_avg_fn`, which writes into the first list.
    """
    _check_decay(decay)
    by_one = get_ema_avg_fn(decay)

    def ema_update(
        averaged: Sequence[jax.Array], current: Sequence[jax.Array], num_averaged: jax.Array
    ) -> list[jax.Array]:
        pairs = zip(averaged, current, strict=True)
        if _is_inexact(averaged[0]):
            return [_lerp(a, p, 1 - decay) for a, p in pairs]
        return [by_one(a, p, num_averaged) for a, p in pairs]

    return ema_update


def get_swa_avg_fn() -> AvgFn:
    """Return the function `average + (parameter - average) / (n + 1)` of one array: the mean of all.

    torch counterpart: `torch.optim.swa_utils.get_swa_avg_fn`.

    >>> from jaxpar.optim import swa_utils
    >>> swa_utils.get_swa_avg_fn()(1.0, 4.0, 2)
    2.0
    """

    def swa_update(averaged: jax.Array, current: jax.Array, num_averaged: jax.Array) -> jax.Array:
        return averaged + (current - averaged) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """Return the mean of all parameters for lists of arrays of one type.

    torch counterpart: `torch.optim.swa_utils.get_swa_multi_avg_fn`, which writes into the first list.
    """
    by_one = get_swa_avg_fn()

    def swa_update(
        averaged: Sequence[jax.Array], current: Sequence[jax.Array], num_averaged: jax.Array
    ) -> list[jax.Array]:
        pairs = zip(averaged, current, strict=True)
        if _is_inexact(averaged[0]):
            return [_lerp(a, p, 1 / (num_averaged + 1)) for a, p in pairs]
        return [by_one(a, p, num_averaged) for a, p in pairs]

    return swa_update


def _lerp(start: jax.Array, end: jax.Array, weight: float | jax.Array) -> jax.Array:
    wide = jnp.promote_types(start.dtype, jnp.float32)
    return lerp(start.astype(wide), end.astype(wide), jnp.asarray(weight, jnp.finfo(wide).dtype))


def _is_inexact(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
