"""Schedules that multiply the rate by a factor of the step: steps, decays, ramps and the user's functions."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import Count, NonNegative, Positive
from .._hyperparameters import StartRate, as_float
from ._checks import check_constant, check_linear
from ._schedule import Rate, Schedule, closed_form, multiplicative, power


def step_lr(lr: StartRate, step_size: Positive, gamma: NonNegative = 0.1) -> Schedule:
    """Return the schedule lr * gamma**(t // step_size), torch.optim.lr_scheduler.StepLR.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.step_lr(0.1, step_size=30)
    >>> [round(float(schedule(t)), 4) for t in (0, 30, 60)]
    [0.1, 0.01, 0.001]
    """
    return multiplicative(lr, lambda t: power(gamma, t // step_size))


def multi_step_lr(lr: StartRate, milestones: Iterable[Count], gamma: NonNegative = 0.1) -> Schedule:
    """Return lr * gamma**k after k milestones, repeated ones too, as torch.optim.lr_scheduler.MultiStepLR.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.multi_step_lr(0.1, milestones=[30, 80])
    >>> [round(float(schedule(t)), 4) for t in (0, 30, 80)]
    [0.1, 0.01, 0.001]
    """
    reached = np.sort(list(milestones)).astype(int)
    return multiplicative(lr, lambda t: power(gamma, jnp.searchsorted(reached, t, side="right")))


def exponential_lr(lr: StartRate, gamma: NonNegative) -> Schedule:
    """Return the schedule lr * gamma**t, torch.optim.lr_scheduler.ExponentialLR.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.exponential_lr(1.0, gamma=0.5)
    >>> [round(float(schedule(t)), 4) for t in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """
    return multiplicative(lr, lambda t: power(gamma, t))


def constant_lr(lr: StartRate, factor: float = 1 / 3, total_iters: Count = 5) -> Schedule:
    """Return lr * factor until step `total_iters`, then lr, as torch.optim.lr_scheduler.ConstantLR.

    Raises: ValueError: a factor above 1 or below 0.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.constant_lr(1.0, factor=0.5, total_iters=2)
    >>> [round(float(schedule(t)), 4) for t in range(4)]
    [0.5, 0.5, 1.0, 1.0]
    """
    check_constant(factor)
    # Torch undoes the factor on arriving at step total_iters, and it never arrives at step 0.
    return multiplicative(
        lr, lambda t: jnp.where((t >= total_iters) & (total_iters > 0), 1.0, as_float(factor))
    )


def linear_lr(
    lr: StartRate, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: Count = 5
) -> Schedule:
    """Change linearly between lr times the two factors, as torch.optim.lr_scheduler.LinearLR.

    Raises: ValueError: factors outside of (0, 1] and [0, 1].

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.linear_lr(1.0, start_factor=0.5, total_iters=2)
    >>> [round(float(schedule(t)), 4) for t in range(4)]
    [0.5, 0.75, 1.0, 1.0]
    """
    check_linear(start_factor, end_factor)
    return multiplicative(
        lr, lambda t: start_factor + (end_factor - start_factor) * _fraction_done(t, total_iters)
    )


def polynomial_lr(lr: StartRate, total_iters: Count = 5, power: NonNegative = 1.0) -> Schedule:
    """Return lr * (1 - min(t / total_iters, 1))**power, torch.optim.lr_scheduler.PolynomialLR.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.polynomial_lr(1.0, total_iters=4)
    >>> [round(float(schedule(t)), 4) for t in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return multiplicative(lr, lambda t: (1 - _fraction_done(t, total_iters)) ** power)


def _fraction_done(t: jax.Array, total_iters: Count) -> jax.Array:
    return as_float(jnp.minimum(t, total_iters)) / max(total_iters, 1)


def lambda_lr(lr: StartRate, lr_lambda: Rate) -> Schedule:
    """Return the schedule lr * lr_lambda(t), where t is an integer array, traced inside of `jax.jit`.

    torch counterpart: `torch.optim.lr_scheduler.LambdaLR`, which takes a list for parameter groups; here each
    group gets its own schedule.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.lambda_lr(1.0, lambda t: 0.5**t)
    >>> [round(float(schedule(t)), 4) for t in range(3)]
    [1.0, 0.5, 0.25]
    """
    return closed_form(lambda t: lr * lr_lambda(t), base=lr)


def multiplicative_lr(lr: StartRate, lr_lambda: Rate) -> Schedule:
    """Return the schedule lr * lr_lambda(1) * ... * lr_lambda(t), by a loop of t rounds at every step.

    torch counterpart: `torch.optim.lr_scheduler.MultiplicativeLR`.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.multiplicative_lr(1.0, lambda t: 0.5)
    >>> [round(float(schedule(t)), 4) for t in range(3)]
    [1.0, 0.5, 0.25]
    """

    def one(i):
        return jnp.asarray(lr_lambda(i), float)

    def product(t):
        return jax.lax.fori_loop(1, t + 1, lambda i, x: x * one(i), jnp.ones((), float))

    def resume(t, before):
        return before * one(jnp.zeros((), int)) * product(t)

    return multiplicative(lr, product, resume)
