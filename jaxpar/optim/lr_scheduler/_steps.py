"""Rates that fall by a factor: at every n-th step, at given steps, at each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._schedule import Schedule, multiple, power


def step_lr(lr: Any, step_size: int, gamma: float = 0.1) -> Schedule:
    """lr * gamma**(t // step_size).

    torch counterpart: `torch.optim.lr_scheduler.StepLR`.
    """
    if step_size <= 0:
        raise ValueError(f"step_lr: step_size must be positive, but is {step_size}.")
    return multiple(lr, lambda t: power(gamma, t // step_size))


def multi_step_lr(lr: Any, milestones: Iterable[int], gamma: float = 0.1) -> Schedule:
    """lr * gamma**k, where k milestones have been reached; a milestone given twice counts twice.

    torch counterpart: `torch.optim.lr_scheduler.MultiStepLR`.
    """
    reached = np.sort(list(milestones)).astype(int)
    return multiple(lr, lambda t: power(gamma, jnp.searchsorted(reached, t, side="right")))


def exponential_lr(lr: Any, gamma: float) -> Schedule:
    """lr * gamma**t.

    torch counterpart: `torch.optim.lr_scheduler.ExponentialLR`.
    """
    return multiple(lr, lambda t: power(gamma, t))
