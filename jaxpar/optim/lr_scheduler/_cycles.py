"""Rates that follow a cosine, or rise and fall in cycles, and momenta that do the opposite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import NonNegative, Positive
from .._hyperparameters import Scalar, StartRate, as_float
from ._checks import check_cycle, check_one_cycle, check_restarts, total_of
from ._schedule import Rate, Schedule, closed_form, power


def cyclic_lr(
    base_lr: StartRate,
    max_lr: StartRate,
    step_size_up: int = 2000,
    step_size_down: int | None = None,
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
    gamma: NonNegative = 1.0,
    scale_fn: Rate | None = None,
    scale_mode: Literal["cycle", "iterations"] = "cycle",
    cycle_momentum: bool = True,
    base_momentum: NonNegative = 0.8,
    max_momentum: NonNegative = 0.9,
) -> Schedule:
    """Cycle between base_lr and max_lr as torch.optim.lr_scheduler.CyclicLR, with an optional momentum.

    Args:
      step_size_up, step_size_down: the steps from base_lr to max_lr, and back.
      mode: the amplitude: constant, halved in each cycle, or multiplied by gamma**t.
      scale_fn: the amplitude instead, as a function of an array: the cycle (from 1) or, if `scale_mode` is
        "iterations", the step.
      cycle_momentum: whether the result has `momentum`, which is `max_momentum` where the rate is lowest.

    Raises: ValueError: an unknown mode.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.cyclic_lr(0.1, 1.0, step_size_up=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 5, 10, 20)]
    [0.1, 0.55, 1.0, 0.1]
    """
    check_cycle("cyclic_lr", mode, scale_fn, step_size_up, step_size_down)
    up = float(step_size_up)
    total = up + (up if step_size_down is None else float(step_size_down))
    by_cycle = scale_mode == "cycle" if scale_fn else mode != "exp_range"
    scales: dict[str, Rate] = {
        "triangular": lambda x: 1.0,
        "triangular2": lambda x: 1 / power(2.0, x - 1),
        "exp_range": lambda x: power(gamma, x),
    }
    scale = scale_fn or scales[mode]

    def height(t):
        cycle = jnp.floor(1 + as_float(t) / total)
        x = 1 + as_float(t) / total - cycle
        ratio = up / total
        part = jnp.where(x <= ratio, x / ratio, (x - 1) / (ratio - 1)) if ratio < 1 else x
        return part * scale(cycle if by_cycle else t)

    def momentum(t):
        return max_momentum - (max_momentum - base_momentum) * height(t)

    def rate(t):
        return base_lr + (max_lr - base_lr) * height(t)

    return closed_form(rate, momentum if cycle_momentum else None)


def one_cycle_lr(
    max_lr: StartRate,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    cycle_momentum: bool = True,
    base_momentum: NonNegative = 0.85,
    max_momentum: NonNegative = 0.95,
    div_factor: NonNegative = 25.0,
    final_div_factor: NonNegative = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """Rise from max_lr / div_factor to max_lr, then fall to max_lr / div_factor / final_div_factor.

    Args:
      total_steps: the length, or `epochs` times `steps_per_epoch`.
      pct_start: the fraction of the steps in which the rate rises.
      anneal_strategy: along a cosine or a straight line.
      cycle_momentum: as for `cyclic_lr`.
      three_phase: fall to the initial rate as fast as it rose, and only then to the last.

    After the last step, where torch raises, the rate stays. Other errors are torch's.

    torch counterpart: `torch.optim.lr_scheduler.OneCycleLR`. `optax.cosine_onecycle_schedule` differs.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.one_cycle_lr(1.0, total_steps=11, pct_start=0.5)
    >>> [round(float(schedule(t)), 4) for t in (0, 10)]
    [0.04, 0.0]
    """
    total = total_of(total_steps, epochs, steps_per_epoch)
    check_one_cycle(pct_start, anneal_strategy)
    first = max_lr / div_factor
    last = first / final_div_factor
    # torch's own off-by-one conventions: phases end at fractional steps.
    ends = [float(pct_start * total) - 1]
    ends += [float(2 * pct_start * total) - 2] if three_phase else []
    ends += [total - 1]
    rates = [first, max_lr, first, last] if three_phase else [first, max_lr, last]
    momenta = [max_momentum, base_momentum, *[max_momentum] * (len(ends) - 1)]
    anneal = _cos if anneal_strategy == "cos" else _linear
    return closed_form(
        lambda t: _phases(t, ends, rates, anneal),
        (lambda t: _phases(t, ends, momenta, anneal)) if cycle_momentum else None,
    )


def _phases(
    t: jax.Array, ends: Sequence[float], values: Sequence[Scalar], anneal: Callable[..., jax.Array]
) -> jax.Array:
    """Return the value of the first phase that has not ended, or the last step's value."""
    t = jnp.minimum(as_float(t), ends[-1])
    starts = [0.0, *ends[:-1]]
    phases = [
        anneal(values[i], values[i + 1], (t - start) / ((end - start) or 1.0))
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    # From the last phase backwards, so that the first phase whose end is not passed wins.
    result = phases.pop()
    for end, value in zip(ends[-2::-1], reversed(phases), strict=True):
        result = jnp.where(t <= end, value, result)
    return result


def _cos(start, end, pct):
    return end + (start - end) / 2.0 * (jnp.cos(math.pi * pct) + 1)


def _linear(start, end, pct):
    return (end - start) * pct + start


def cosine_annealing_lr(lr: StartRate, T_max: Positive, eta_min: NonNegative = 0.0) -> Schedule:
    """Decay from lr to eta_min in T_max steps along a cosine, then rise in the next T_max.

    torch counterpart: `torch.optim.lr_scheduler.CosineAnnealingLR`. `optax.cosine_decay_schedule` stays low.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.cosine_annealing_lr(1.0, T_max=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """

    def height(t):
        return 1 + jnp.cos(as_float(t) * math.pi / T_max)

    def rate(t):
        return eta_min + (lr - eta_min) * height(t) / 2

    def advance(t, before):
        # From the bottom, where the factor would be a division by zero, torch climbs by a fixed amount.
        bottom = (t - 1 - T_max) % (2 * T_max) == 0
        climbed = before + (lr - eta_min) * (1 - math.cos(math.pi / T_max)) / 2
        last = jnp.where(bottom, 1.0, height(t - 1))
        return jnp.where(
            t == 0, before, jnp.where(bottom, climbed, height(t) / last * (before - eta_min) + eta_min)
        )

    return Schedule(rate, advance, lr)


def cosine_annealing_warm_restarts(
    lr: StartRate, T_0: int, T_mult: int = 1, eta_min: NonNegative = 0.0
) -> Schedule:
    """Decay from lr to eta_min along a cosine, restarting: in T_0 steps, then in T_mult times as many, ...

    Raises: ValueError: T_0 or T_mult is not a positive integer.

    torch counterpart: `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.

    >>> from jaxpar.optim import lr_scheduler
    >>> schedule = lr_scheduler.cosine_annealing_warm_restarts(1.0, T_0=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 5, 10)]
    [1.0, 0.5, 1.0]
    """
    check_restarts(T_0, T_mult, eta_min)

    def rate(t):
        since, period = _since_restart(t, T_0, T_mult)
        return eta_min + (lr - eta_min) * (1 + jnp.cos(math.pi * as_float(since) / as_float(period))) / 2

    return closed_form(rate, base=lr)


def _since_restart(t: jax.Array, T_0: int, T_mult: int) -> tuple[jax.Array, jax.Array | int]:
    """Return the steps since the last restart and the period's length; integers, so exact."""
    if T_mult == 1:
        return t % T_0, T_0
    starts, periods = [0], [T_0]
    while starts[-1] + periods[-1] < np.iinfo(np.int32).max:
        starts.append(starts[-1] + periods[-1])
        periods.append(periods[-1] * T_mult)
    which = jnp.searchsorted(np.array(starts), t, side="right") - 1
    return t - jnp.asarray(np.array(starts))[which], jnp.asarray(np.array(periods, float))[which]
