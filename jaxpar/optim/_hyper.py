"""Hyperparameters: numbers, arrays and schedules, and what they are at a step.

Torch changes a hyperparameter by writing into `param_groups`; here it is a function of the step.
Every `lr`, and every momentum that torch's schedulers cycle, may be a Python number (a constant of
the program, exact), an array (`optax.inject_hyperparams` makes these) or a schedule `step -> value`.

Torch computes with scalars in Python's float64 whatever the parameters are. Here they are float64
under x64 and float32 otherwise, so differences such as 1 - beta**t are taken in a form that does
not cancel. The step is an integer of JAX's full width: schedules that turn it into a float get a
float64 under x64, which they do not from the int32 of optax's own counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

Hyper: TypeAlias = "float | jax.Array | Callable[[Any], Any]"

SPELLED = {"lr": "learning rate", "eps": "epsilon value"}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is known when the optimizer is built."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def is_zero(value: Any) -> bool:
    return is_number(value) and value == 0


def check(**values: Any) -> None:
    """Torch's refusal of negative numbers, in torch's words. Arrays and schedules are let through."""
    for name, value in values.items():
        if is_number(value) and not value >= 0:
            raise ValueError(f"Invalid {SPELLED.get(name, name + ' value')}: {value}")


def check_betas(betas: Any) -> None:
    for i, beta in enumerate(betas):
        if is_number(beta) and not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


def start() -> jax.Array:
    """The number of steps taken: none."""
    return jnp.zeros((), int)


def at(value: Hyper, step: jax.Array) -> Any:
    """A hyperparameter after `step` steps."""
    return value(step) if callable(value) else value


def real(step: Any) -> jax.Array:
    """A step as a float of JAX's full width."""
    return jnp.asarray(step, float)


def correction(beta: Any, step: jax.Array) -> jax.Array:
    """1 - beta**step. In float32 the plain form loses up to three digits while beta**step is near 1."""
    if is_number(beta):
        return -expm1(real(step) * (math.log(beta) if beta else -math.inf))
    return -expm1(real(step) * jnp.log(beta))


def expm1(x: jax.Array) -> jax.Array:
    """exp(x) - 1 for x <= 0. XLA's is up to three units off in float32, near 0 always to the same side."""
    series = jnp.ones_like(x)
    for k in range(17, 1, -1):
        series = 1 + x / k * series
    return jnp.where(x > -0.5, x * series, jnp.exp(x) - 1)


def need(params: Any, function: str) -> None:
    if params is None:
        raise ValueError(
            f"{function}: the update depends on the parameters; pass them: tx.update(grads, state, params)."
        )
