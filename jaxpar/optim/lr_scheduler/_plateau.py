"""Reduce the rate when a metric has stopped improving."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..._arguments import Count, NonNegative
from .._leafwise import leafwise
from ._checks import check_plateau


class ReduceLROnPlateauState(NamedTuple):
    """`lr`: the next step's rate. `best`: the best metric so far. Two counters, with torch's names."""

    lr: jax.Array
    best: jax.Array
    num_bad_epochs: jax.Array
    cooldown_counter: jax.Array


def reduce_lr_on_plateau(
    lr: NonNegative,
    mode: Literal["min", "max"] = "min",
    factor: NonNegative = 0.1,
    patience: Count = 10,
    threshold: float = 1e-4,
    threshold_mode: Literal["rel", "abs"] = "rel",
    cooldown: Count = 0,
    min_lr: NonNegative = 0,
    eps: NonNegative = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """Scale updates by state.lr / lr; `update(value=...)` is torch's `ReduceLROnPlateau.step(...)`.

    Put it after an optimizer with the same constant `lr` in `optax.chain`. As in torch, a value takes effect
    with the next update. Every update is an epoch; to look at the metric less often, apply it by itself:
    `_, state = plateau.update({}, state, value=metric)`, and scale by `state.lr`.

    Args:
      mode: whether a smaller or a larger metric is better.
      factor: multiplies the rate.
      patience: how many epochs without a better metric are tolerated.
      threshold, threshold_mode: what counts as better: by this part of the best, or by this much.
      cooldown: how many epochs after a reduction are not counted.
      min_lr: the lowest rate.
      eps: a change of the rate by no more than this is skipped.

    Raises: ValueError: with torch's message, for values that torch refuses. TypeError: `update` without
    `value`.

    >>> import optax
    >>> from jaxpar import optim
    >>> plateau = optim.lr_scheduler.reduce_lr_on_plateau(0.1, patience=5)
    >>> tx = optax.chain(optim.sgd(lr=0.1), plateau)
    """
    check_plateau(factor, mode, threshold_mode)
    sign = 1.0 if mode == "min" else -1.0

    def better(value, best):
        if threshold_mode == "rel":
            return sign * value < sign * best * (1.0 - sign * threshold)
        return sign * value < sign * best - threshold

    def init(params):
        # Each field gets an array of its own: the state may be donated.
        return ReduceLROnPlateauState(
            jnp.array(lr, float), jnp.array(sign * jnp.inf, float), jnp.zeros((), int), jnp.zeros((), int)
        )

    def update(updates, state, params=None, *, value, **extra):
        value = jnp.asarray(value, state.best.dtype)
        improved = better(value, state.best)
        bad = jnp.where(improved, 0, state.num_bad_epochs + 1)
        cooling = state.cooldown_counter > 0
        bad = jnp.where(cooling, 0, bad)
        tired = bad > patience
        lower = jnp.maximum(state.lr * factor, min_lr)
        reduce = tired & (state.lr - lower > eps)
        (scaled,) = leafwise(lambda s, u: (s[0] * u,), (state.lr / lr,), updates)
        return scaled, ReduceLROnPlateauState(
            jnp.where(reduce, lower, state.lr),
            jnp.where(improved, value, state.best),
            jnp.where(tired, 0, bad),
            jnp.where(tired, cooldown, state.cooldown_counter - cooling),
        )

    return optax.GradientTransformationExtraArgs(init, update)
