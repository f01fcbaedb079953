"""Schedule: a learning rate as a function of the step, in the full width of JAX's floats.

With torch's `scheduler.step()` after every optimizer step, t = 0, 1, 2, ...; for schedulers that torch steps
once an epoch, use `lambda t: schedule(t // steps_per_epoch)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._hyperparameters import Scalar, as_float

Rate = Callable[[jax.Array], Scalar]
Advance = Callable[[jax.Array, Scalar], Scalar]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """`schedule(step)` is the learning rate after `step` steps: an optax schedule.

    `momentum`, if the schedule cycles it too, is the same for the momentum: give it to the optimizer
    as `momentum=` or `betas=(..., beta2)`.

    The other fields serve schedules made of schedules. `base`: the rate that it multiplies, or None.
    `advance(step, lr)`: torch's `get_lr`, from any rate before to the one at `step`. `factor(step)`: what
    `base` is multiplied by, if it is only ever multiplied. `carry(step, before)`: the rate, if after a
    milestone torch continues from the rate that it finds.
    """

    rate: Rate
    advance: Advance
    base: Scalar | None = None
    factor: Rate | None = None
    momentum: Rate | None = None
    carry: Advance | None = None

    def __call__(self, step: ArrayLike) -> jax.Array:
        return jnp.asarray(self.rate(jnp.asarray(step)), float)


def multiplicative(lr: Scalar, factor: Rate, carry: Advance | None = None) -> Schedule:
    """Return lr * factor(step), where the factor also applies to rates that other schedules changed."""

    def advance(step, before):
        # The rate before is base * factor(step - 1), possibly changed by others: rescale it by the ratio.
        last = jnp.where(step > 0, factor(jnp.maximum(step - 1, 0)), 1.0)
        # After a factor of zero the rate is zero, and stays so; 0 / 0 would be NaN.
        return before * jnp.where(last == 0, 1.0, factor(step) / jnp.where(last == 0, 1.0, last))

    return Schedule(lambda step: lr * factor(step), advance, lr, factor, carry=carry)


def closed_form(rate: Rate, momentum: Rate | None = None, base: Scalar | None = None) -> Schedule:
    """Return a schedule whose rate does not depend on the previous one."""
    return Schedule(rate, lambda step, before: rate(step), base, momentum=momentum)


def power(x: float, n: jax.Array) -> jax.Array:
    """Return x**n for an integer or real n, as a float of full width."""
    return jnp.power(jnp.asarray(x, float), as_float(n))
