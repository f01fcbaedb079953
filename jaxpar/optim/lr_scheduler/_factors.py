"""Schedules that multiply the rate by a factor of the step: steps, decays, ramps and the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from .._hyperparameters import Scalar, as_float
from ._checks import check_constant, check_linear
from ._schedule import Rate, Schedule, closed_form, multiplicative, power


def step_lr(lr: Scalar, step_size: int, gamma: float = 0.1) -> Schedule:
    """lr * gamma**(t // step_size).

    torch counterpart: `torch.optim.lr_scheduler.StepLR`.
    """
    if step_size <= 0:
        raise ValueError(f"step_lr: step_size must be positive, but is {step_size}.")
    return multiplicative(lr, lambda t: power(gamma, t // step_size))


def multi_step_lr(lr: Scalar, milestones: Iterable[int], gamma: float = 0.1) -> Schedule:
    """lr * gamma**k, where k milestones have been reached; a milestone given twice counts twice.

    torch counterpart: `torch.optim.lr_scheduler.MultiStepLR`.
    """
    reached = np.sort(list(milestones)).astype(int)
    return multiplicative(lr, lambda t: power(gamma, jnp.searchsorted(reached, t, side="right")))


def exponential_lr(lr: Scalar, gamma: float) -> Schedule:
    """lr * gamma**t.

    torch counterpart: `torch.optim.lr_scheduler.ExponentialLR`.
    """
    return multiplicative(lr, lambda t: power(gamma, t))


def constant_lr(lr: Scalar, factor: float = 1 / 3, total_iters: int = 5) -> Schedule:
    """lr * factor before step `total_iters`, lr from there on.

    Raises:
      ValueError: a factor above 1 or below 0.

    torch counterpart: `torch.optim.lr_scheduler.ConstantLR`.
    """
    check_constant(factor)
    # Torch undoes the factor on arriving at step total_iters, and it never arrives at step 0.
    return multiplicative(
        lr, lambda t: jnp.where((t >= total_iters) & (total_iters > 0), 1.0, as_float(factor))
    )


def linear_lr(
    lr: Scalar, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> Schedule:
    """From lr * start_factor to lr * end_factor in a straight line.

    Raises:
      ValueError: factors outside of (0, 1] and [0, 1].

    torch counterpart: `torch.optim.lr_scheduler.LinearLR`.
    """
    check_linear(start_factor, end_factor)
    return multiplicative(
        lr, lambda t: start_factor + (end_factor - start_factor) * _fraction_done(t, total_iters)
    )


def polynomial_lr(lr: Scalar, total_iters: int = 5, power: float = 1.0) -> Schedule:
    """lr * (1 - t / total_iters)**power, and zero from `total_iters` on.

    torch counterpart: `torch.optim.lr_scheduler.PolynomialLR`.
    """
    return multiplicative(lr, lambda t: (1 - _fraction_done(t, total_iters)) ** power)


def _fraction_done(t: jax.Array, total_iters: int) -> jax.Array:
    return as_float(jnp.minimum(t, total_iters)) / max(total_iters, 1)


def lambda_lr(lr: Scalar, lr_lambda: Rate) -> Schedule:
    """lr * lr_lambda(t).

    `lr_lambda` gets the step as an integer array, inside of `jax.jit` a traced one: use `jnp.where`
    instead of `if`.

    torch counterpart: `torch.optim.lr_scheduler.LambdaLR`, which takes a list for parameter groups; here
    each group gets its own schedule.
    """
    _check_callable(lr_lambda)
    return closed_form(lambda t: lr * lr_lambda(t), base=lr)


def multiplicative_lr(lr: Scalar, lr_lambda: Rate) -> Schedule:
    """lr * lr_lambda(1) * ... * lr_lambda(t).

    Every step computes the whole product, by a loop of t rounds in the compiled program.

    torch counterpart: `torch.optim.lr_scheduler.MultiplicativeLR`.
    """
    _check_callable(lr_lambda)

    def one(i):
        return jnp.asarray(lr_lambda(i), float)

    def product(t):
        return jax.lax.fori_loop(1, t + 1, lambda i, x: x * one(i), jnp.ones((), float))

    def resume(t, before):
        return before * one(jnp.zeros((), int)) * product(t)

    return multiplicative(lr, product, resume)


def _check_callable(lr_lambda: Callable[..., object]) -> None:
    if not callable(lr_lambda):
        raise TypeError(f"lr_lambda should be a function, but got {type(lr_lambda).__name__}")
