"""Rates by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._schedule import Schedule, absolute, multiple


def lambda_lr(lr: Any, lr_lambda: Callable[[Any], Any]) -> Schedule:
    """lr * lr_lambda(t).

    `lr_lambda` gets the step as an integer array, inside of `jax.jit` a traced one: `jnp.where` instead
    of `if`.

    torch counterpart: `torch.optim.lr_scheduler.LambdaLR`, which takes a list for parameter groups; here
    each group gets its own schedule.
    """
    _check(lr_lambda)
    return absolute(lambda t: lr * lr_lambda(t), base=lr)


def multiplicative_lr(lr: Any, lr_lambda: Callable[[Any], Any]) -> Schedule:
    """lr * lr_lambda(1) * ... * lr_lambda(t).

    The product is taken anew at every step, by a loop of t rounds in the compiled program.

    torch counterpart: `torch.optim.lr_scheduler.MultiplicativeLR`.
    """
    _check(lr_lambda)

    def one(i):
        return jnp.asarray(lr_lambda(i), float)

    def product(t):
        return jax.lax.fori_loop(1, t + 1, lambda i, x: x * one(i), jnp.ones((), float))

    return multiple(lr, product, carry=lambda t, before: before * one(jnp.zeros((), int)) * product(t))


def _check(lr_lambda: Any) -> None:
    if not callable(lr_lambda):
        raise TypeError(f"lr_lambda should be a function, but got {type(lr_lambda).__name__}")
