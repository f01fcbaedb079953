"""One rise to the largest rate and one fall to a tiny one, and a momentum that does the opposite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .._hyper import real
from ._schedule import Schedule, absolute


def one_cycle_lr(
    max_lr: Any,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    cycle_momentum: bool = True,
    base_momentum: float = 0.85,
    max_momentum: float = 0.95,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """From max_lr / div_factor to max_lr and down to max_lr / div_factor / final_div_factor.

    Args:
      total_steps: the length, or `epochs` times `steps_per_epoch`.
      pct_start: the part of it in which the rate rises.
      anneal_strategy: along a cosine or a straight line.
      cycle_momentum: whether the result has `momentum`, which is `max_momentum` where the rate is lowest.
      three_phase: fall to the initial rate as fast as it rose, and only then to the last.

    After the last step, where torch raises, the rate stays; a program cannot raise by the step.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.lr_scheduler.OneCycleLR`. The phases of
    `optax.cosine_onecycle_schedule` end elsewhere.
    """
    total = _total(total_steps, epochs, steps_per_epoch)
    if pct_start < 0 or pct_start > 1 or not isinstance(pct_start, float):
        raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
    first = max_lr / div_factor
    last = first / final_div_factor
    ends = [float(pct_start * total) - 1]
    ends += [float(2 * pct_start * total) - 2] if three_phase else []
    ends += [total - 1]
    rates = [first, max_lr, first, last] if three_phase else [first, max_lr, last]
    momenta = [max_momentum, base_momentum, *[max_momentum] * (len(ends) - 1)]
    anneal = _cos if anneal_strategy == "cos" else _linear
    return absolute(
        lambda t: _phases(t, ends, rates, anneal),
        (lambda t: _phases(t, ends, momenta, anneal)) if cycle_momentum else None,
    )


def _total(total_steps: Any, epochs: Any, steps_per_epoch: Any) -> int:
    if total_steps is not None:
        return _positive("total_steps", total_steps)
    if epochs is None or steps_per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    return _positive("epochs", epochs) * _positive("steps_per_epoch", steps_per_epoch)


def _positive(what: str, n: Any) -> int:
    if n <= 0 or not isinstance(n, int):
        raise ValueError(f"Expected positive integer {what}, but got {n}")
    return n


def _phases(t: Any, ends: list[float], values: list[Any], anneal: Callable[..., Any]) -> jax.Array:
    """The first phase that has not ended decides, and after the last its last step."""
    t = jnp.minimum(real(t), ends[-1])
    result: Any = None
    for i in reversed(range(len(ends))):
        start = ends[i - 1] if i else 0.0
        length = ends[i] - start
        here = anneal(values[i], values[i + 1], (t - start) / (length if length else 1.0))
        result = here if result is None else jnp.where(t <= ends[i], here, result)
    return result


def _cos(start, end, pct):
    return end + (start - end) / 2.0 * (jnp.cos(math.pi * pct) + 1)


def _linear(start, end, pct):
    return (end - start) * pct + start
