"""Schedule: a learning rate as a function of the step.

Torch's schedulers write into the optimizer's `lr`, most of them by changing what is there. Here the
rate of step t is computed from t, as in optax, so that it needs no state and cannot get out of step.
`scheduler.step()` after every optimizer step is step t = 0, 1, 2, ...; for schedulers that torch
steps once an epoch, `lambda t: schedule(t // steps_per_epoch)`.

All arithmetic is in the full width of JAX's floats, float64 under x64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._hyper import real

Rate = Callable[[jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """`schedule(step)` is the learning rate after `step` steps: an optax schedule.

    `momentum`, where a schedule cycles it too, is the same for the momentum: give it to the optimizer
    as `momentum=` or `betas=(..., beta2)`.

    The other fields are for schedules made of others. `base`: the rate that it is a multiple of, None if
    it is none. `advance(step, lr)`: torch's `get_lr`, from the rate before to the one at `step`, of any
    rate. `factor(step)`: what `base` is multiplied with, if it is only ever multiplied. `carry(step,
    before)`: the rate, if after a milestone torch goes on from the rate that it finds.
    """

    rate: Rate
    advance: Callable[[jax.Array, Any], Any]
    base: float | None = None
    factor: Rate | None = None
    momentum: Rate | None = None
    carry: Callable[[jax.Array, Any], Any] | None = None

    def __call__(self, step: Any) -> jax.Array:
        return jnp.asarray(self.rate(jnp.asarray(step)), float)


def multiple(lr: Any, factor: Rate, carry: Callable[[jax.Array, Any], Any] | None = None) -> Schedule:
    """lr * factor(step), whoever else has changed the rate."""

    def advance(step, before):
        last = jnp.where(step > 0, factor(jnp.maximum(step - 1, 0)), 1.0)
        # A factor of zero has made the rate zero, and it stays.
        return before * jnp.where(last == 0, 1.0, factor(step) / jnp.where(last == 0, 1.0, last))

    return Schedule(lambda step: lr * factor(step), advance, lr, factor, carry=carry)


def absolute(rate: Rate, momentum: Rate | None = None, base: float | None = None) -> Schedule:
    """A rate that does not depend on what it was."""
    return Schedule(rate, lambda step, before: rate(step), base, momentum=momentum)


def power(x: Any, n: jax.Array) -> jax.Array:
    """x**n for a whole or real n, as a float of full width."""
    return jnp.power(jnp.asarray(x, float), real(n))
