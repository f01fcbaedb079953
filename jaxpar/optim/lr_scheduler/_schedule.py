"""Schedule: a rate as a function of the step, in the full width of JAX's floats; schedules of schedules.

With torch's `scheduler.step()` after every optimizer step, t = 0, 1, 2, ...; for schedulers that torch steps
once an epoch, use `lambda t: schedule(t // steps_per_epoch)`.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._hyperparameters import Scalar, StartRate, as_float
from ._checks import check_milestones, check_not_empty, refuse_plateau

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
    base: StartRate | None = None
    factor: Rate | None = None
    momentum: Rate | None = None
    carry: Advance | None = None

    def __call__(self, step: ArrayLike) -> jax.Array:
        return jnp.asarray(self.rate(jnp.asarray(step)), float)


def multiplicative(lr: StartRate, factor: Rate, carry: Advance | None = None) -> Schedule:
    """Return lr * factor(step), where the factor also applies to rates that other schedules changed."""

    def advance(step, before):
        # The rate before is base * factor(step - 1), possibly changed by others: rescale it by the ratio.
        last = jnp.where(step > 0, factor(jnp.maximum(step - 1, 0)), 1.0)
        # After a factor of zero the rate is zero, and stays so; 0 / 0 would be NaN.
        return before * jnp.where(last == 0, 1.0, factor(step) / jnp.where(last == 0, 1.0, last))

    return Schedule(lambda step: lr * factor(step), advance, lr, factor, carry=carry)


def closed_form(rate: Rate, momentum: Rate | None = None, base: StartRate | None = None) -> Schedule:
    """Return a schedule whose rate does not depend on the previous one."""
    return Schedule(rate, lambda step, before: rate(step), base, momentum=momentum)


def power(x: float, n: jax.Array) -> jax.Array:
    """Return x**n for an integer or real n, as a float of full width."""
    return jnp.power(jnp.asarray(x, float), as_float(n))


def sequential_lr(schedulers: Sequence[Rate], milestones: Sequence[int]) -> Schedule:
    """Apply `schedulers[i]` from `milestones[i - 1]` on, as torch.optim.lr_scheduler.SequentialLR.

    Each counts its own steps and has its own base rate; in torch all have the optimizer's. As in torch,
    `multiplicative_lr` continues from the rate at its milestone; the others start from their own first rate.

    Raises: ValueError: the milestones are not one fewer than the schedules, or one of these is a
      `reduce_lr_on_plateau`. TypeError: anything else that is not a function of the step.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.sequential_lr([lambda t: 0.1, lambda t: 0.01], milestones=[5])
    >>> [round(float(schedule(t)), 4) for t in (4, 5)]
    [0.1, 0.01]
    """
    _check("SequentialLR", schedulers)
    check_milestones(schedulers, milestones)
    starts = [0, *milestones]
    if any(a > b for a, b in itertools.pairwise(starts)):
        raise ValueError(f"sequential_lr: milestones must not decrease, but are {list(milestones)}.")

    def part(i, t):
        schedule, local_t = schedulers[i], jnp.maximum(t - starts[i], 0)
        carry = getattr(schedule, "carry", None)
        if carry and i:
            # The rate that this schedule continues from is the one its predecessor left.
            before = starts[i] - 1
            which = bisect.bisect_right(milestones, before)
            return carry(local_t, part(which, jnp.asarray(before)))
        return schedule(local_t)

    def rate(t):
        return _choose(t, starts, lambda i: part(i, t))

    def advance(t, before):
        def one(i):
            local_t = jnp.maximum(t - starts[i], 0)
            moved = _chainable(schedulers[i], "SequentialLR").advance(local_t, before)
            return moved if i == 0 else jnp.where(t == starts[i], part(i, t), moved)

        return _choose(t, starts, one)

    return Schedule(rate, advance, getattr(schedulers[0], "base", None))


def chained_scheduler(schedulers: Sequence[Schedule]) -> Schedule:
    """Apply all schedules to one rate, in order, as torch.optim.lr_scheduler.ChainedScheduler.

    If all schedules only multiply, the result is the product of their factors. Otherwise the compiled program
    repeats torch's recursion in a loop of t rounds, and a schedule that sets the rate, such as `lambda_lr`,
    undoes the effect of earlier ones, as in torch.

    Raises: ValueError: no schedules, or different base rates. TypeError: a schedule not made by this package.

    >>> from jaxpar.optim import lr_scheduler
    >>> parts = [lr_scheduler.exponential_lr(1.0, 0.5), lr_scheduler.constant_lr(1.0, 0.1)]
    >>> round(float(lr_scheduler.chained_scheduler(parts)(1)), 4)
    0.05
    """
    _check("ChainedScheduler", schedulers)
    members = [_chainable(s, "ChainedScheduler") for s in schedulers]
    bases = [s.base for s in members if s.base is not None]
    # `is` first: traced bases cannot be compared by value.
    if any(base is not bases[0] and base != bases[0] for base in bases):
        raise ValueError(f"chained_scheduler: all schedules must have the same base rate, but have {bases}.")
    base = bases[0] if bases else None
    factors = [s.factor for s in members if s.factor is not None]

    def product(t):
        result = jnp.ones((), float)
        for factor in factors:
            result = result * factor(t)
        return result

    def advance(t, before):
        for s in members:
            before = s.advance(t, before)
        return jnp.asarray(before, float)

    def recursion(t):
        start = jnp.asarray(0.0 if base is None else base, float)
        return jax.lax.fori_loop(0, t + 1, advance, start)

    if len(factors) == len(members):
        return Schedule(lambda t: base * product(t), advance, base, product)
    return Schedule(recursion, advance, base)


def _choose(t: jax.Array, starts: Sequence[int], value: Callable[[int], Scalar]) -> Scalar:
    """Return the value of the last schedule that has begun."""
    result = value(0)
    for i in range(1, len(starts)):
        result = jnp.where(t >= starts[i], value(i), result)
    return result


def _check(name: str, schedulers: Sequence[object]) -> None:
    check_not_empty(name, schedulers)
    for i, schedule in enumerate(schedulers):
        refuse_plateau(name, i, hasattr(schedule, "update"))
        if not callable(schedule):
            raise TypeError(f"{name} at index {i} should be a function of the step, but is {schedule!r}.")


def _chainable(schedule: Rate, name: str) -> Schedule:
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"{name}: {schedule!r} is a plain function, which does not say how it would change a rate that "
            "another schedule has set; use jaxpar.optim.lr_scheduler.lambda_lr."
        )
    return schedule
