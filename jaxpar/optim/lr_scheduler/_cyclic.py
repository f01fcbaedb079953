"""Rates that rise and fall in straight lines, cycle after cycle, and momenta that do the opposite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from .._hyper import real
from ._schedule import Schedule, absolute, power


def cyclic_lr(
    base_lr: Any,
    max_lr: Any,
    step_size_up: int = 2000,
    step_size_down: int | None = None,
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
    gamma: float = 1.0,
    scale_fn: Callable[[Any], Any] | None = None,
    scale_mode: Literal["cycle", "iterations"] = "cycle",
    cycle_momentum: bool = True,
    base_momentum: float = 0.8,
    max_momentum: float = 0.9,
) -> Schedule:
    """Between base_lr and max_lr, up in `step_size_up` steps and down in `step_size_down`.

    Args:
      mode: full height in every cycle, half of it each time, or gamma**t of it.
      scale_fn: the height instead, as a function of the cycle (from 1) or, if `scale_mode` is "iterations",
        of the step; it gets an array.
      cycle_momentum: whether the result has `momentum`, which is `max_momentum` where the rate is lowest.

    Raises:
      ValueError: an unknown mode.

    torch counterpart: `torch.optim.lr_scheduler.CyclicLR`, which writes the momentum into the optimizer.
    """
    if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
        raise ValueError("mode is invalid and scale_fn is None")
    up = float(step_size_up)
    total = up + (up if step_size_down is None else float(step_size_down))
    by_cycle = scale_mode == "cycle" if scale_fn else mode != "exp_range"
    scales: dict[str, Callable[[Any], Any]] = {
        "triangular": lambda x: 1.0,
        "triangular2": lambda x: 1 / power(2.0, x - 1),
        "exp_range": lambda x: power(gamma, x),
    }
    scale = scale_fn or scales[mode]

    def height(t):
        cycle = jnp.floor(1 + real(t) / total)
        x = 1 + real(t) / total - cycle
        ratio = up / total
        part = jnp.where(x <= ratio, x / ratio, (x - 1) / (ratio - 1)) if ratio < 1 else x
        return part * scale(cycle if by_cycle else t)

    def momentum(t):
        return max_momentum - (max_momentum - base_momentum) * height(t)

    def rate(t):
        return base_lr + (max_lr - base_lr) * height(t)

    return absolute(rate, momentum if cycle_momentum else None)
