"""Rates that go from one factor to another within `total_iters` steps and stay there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._hyper import real
from ._schedule import Schedule, multiple


def constant_lr(lr: Any, factor: float = 1 / 3, total_iters: int = 5) -> Schedule:
    """lr * factor before step `total_iters`, lr from there on.

    Raises:
      ValueError: a factor above 1 or below 0.

    torch counterpart: `torch.optim.lr_scheduler.ConstantLR`.
    """
    if factor > 1 or factor < 0:
        raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
    # Torch undoes the factor when it comes to step total_iters, and it does not come to step 0.
    return multiple(lr, lambda t: jnp.where((t >= total_iters) & (total_iters > 0), 1.0, real(factor)))


def linear_lr(
    lr: Any, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> Schedule:
    """From lr * start_factor to lr * end_factor in a straight line.

    Raises:
      ValueError: factors outside of (0, 1] and [0, 1].

    torch counterpart: `torch.optim.lr_scheduler.LinearLR`.
    """
    if start_factor > 1 or start_factor <= 0:
        raise ValueError(
            "Starting multiplicative factor expected to be greater than 0 and less or equal to 1."
        )
    if end_factor > 1 or end_factor < 0:
        raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
    return multiple(lr, lambda t: start_factor + (end_factor - start_factor) * _part(t, total_iters))


def polynomial_lr(lr: Any, total_iters: int = 5, power: float = 1.0) -> Schedule:
    """lr * (1 - t / total_iters)**power, and zero from `total_iters` on.

    torch counterpart: `torch.optim.lr_scheduler.PolynomialLR`.
    """
    return multiple(lr, lambda t: (1 - _part(t, total_iters)) ** power)


def _part(t: jax.Array, total_iters: int) -> jax.Array:
    """How much of the way is done, from 0 to 1."""
    return real(jnp.minimum(t, total_iters)) / max(total_iters, 1)
