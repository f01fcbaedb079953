"""Rates that follow a cosine."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from .._hyperparameters import Scalar, as_float
from ._checks import check_restarts
from ._schedule import Schedule, closed_form


def cosine_annealing_lr(lr: Scalar, T_max: int, eta_min: float = 0.0) -> Schedule:
    """Decay from lr to eta_min in T_max steps along a cosine, then rise in the next T_max.

    torch counterpart: `torch.optim.lr_scheduler.CosineAnnealingLR`. `optax.cosine_decay_schedule` stays low.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.cosine_annealing_lr(1.0, T_max=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
    if T_max <= 0:
        raise ValueError(f"cosine_annealing_lr: T_max must be positive, but is {T_max}.")

    def height(t):
        return 1 + jnp.cos(as_float(t) * math.pi / T_max)

    def rate(t):
        return eta_min + (lr - eta_min) * height(t) / 2

    def advance(t, before):
        # From the bottom, where the factor would be a division by zero, torch climbs by a fixed amount.
        bottom = (t - 1 - T_max) % (2 * T_max) == 0
        climbed = before + (lr - eta_min) * (1 - math.cos(math.pi / T_max)) / 2
        last = jnp.where(bottom, 1.0, height(t - 1))
        return jnp.where(
            t == 0, before, jnp.where(bottom, climbed, height(t) / last * (before - eta_min) + eta_min)
        )

    return Schedule(rate, advance, lr)


def cosine_annealing_warm_restarts(lr: Scalar, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> Schedule:
    """Decay from lr to eta_min along a cosine, restarting: in T_0 steps, then in T_mult times as many, ...

    Raises: ValueError: T_0 or T_mult is not a positive integer.

    torch counterpart: `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.cosine_annealing_warm_restarts(1.0, T_0=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 5, 10)]
    [1.0, 0.5, 1.0]
    """
    check_restarts(T_0, T_mult, eta_min)

    def rate(t):
        since, period = _since_restart(t, T_0, T_mult)
        return eta_min + (lr - eta_min) * (1 + jnp.cos(math.pi * as_float(since) / as_float(period))) / 2

    return closed_form(rate, base=lr)


def _since_restart(t: jax.Array, T_0: int, T_mult: int) -> tuple[jax.Array, jax.Array | int]:
    """Return the steps since the last restart and the period's length; integers, so exact."""
    if T_mult == 1:
        return t % T_0, T_0
    starts, periods = [0], [T_0]
    while starts[-1] + periods[-1] < np.iinfo(np.int32).max:
        starts.append(starts[-1] + periods[-1])
        periods.append(periods[-1] * T_mult)
    which = jnp.searchsorted(np.array(starts), t, side="right") - 1
    return t - jnp.asarray(np.array(starts))[which], jnp.asarray(np.array(periods, float))[which]
