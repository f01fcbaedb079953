"""The line of `jaxpar.optim.lr_scheduler` that makes what a torch scheduler is.

The classes have torch's names and arguments. What a torch scheduler was made with is read from its
attributes, most of which are called like the arguments.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler as theirs

from jaxpar.optim import lr_scheduler as ours
from jaxpar.optim.swa_utils import SWALR

from ....errors import PortError
from .functions import Functions
from .optimizer import plain

MEMBERS = {"SequentialLR", "ChainedScheduler"}


@dataclasses.dataclass(frozen=True)
class PerGroup:
    """One value for each of the optimizer's groups."""

    values: Sequence[Any]


def _phase(scheduler: Any) -> float:
    return (scheduler._schedule_phases[0]["end_step"] + 1) / scheduler.total_steps


def _noted(key: str) -> Callable[[Any], PerGroup]:
    return lambda scheduler: PerGroup([group[key] for group in scheduler.optimizer.param_groups])


def _cycled(key: str) -> Callable[[Any], Any]:
    """A note that is there if the momentum is cycled."""
    return lambda scheduler: _noted(key)(scheduler) if scheduler.cycle_momentum else None


def _ratio(above: str, below: str) -> Callable[[Any], float]:
    def read(scheduler: Any) -> float:
        group = scheduler.optimizer.param_groups[0]
        return _short(group[above] / group[below])

    return read


def _short(x: float) -> float:
    """A number that was computed as the user may have written it."""
    return float(f"{x:.13g}")


def _size(part: Callable[[float], float]) -> Callable[[Any], float]:
    return lambda scheduler: _whole(scheduler.total_size * part(scheduler.step_ratio))


def _whole(x: float) -> float:
    return int(_short(x)) if _short(x).is_integer() else _short(x)


READ: dict[str, dict[str, Callable[[Any], Any]]] = {
    "MultiStepLR": {"milestones": lambda s: sorted(s.milestones.elements())},
    "LambdaLR": {"lr_lambda": lambda s: PerGroup(s.lr_lambdas)},
    "MultiplicativeLR": {"lr_lambda": lambda s: PerGroup(s.lr_lambdas)},
    "CyclicLR": {
        "base_lr": lambda s: PerGroup(s.base_lrs),
        "max_lr": lambda s: PerGroup(s.max_lrs),
        "step_size_up": _size(lambda ratio: ratio),
        "step_size_down": lambda s: None if s.step_ratio == 0.5 else _size(lambda ratio: 1 - ratio)(s),
        "scale_fn": lambda s: s._scale_fn_custom,
        "base_momentum": _cycled("base_momentum"),
        "max_momentum": _cycled("max_momentum"),
    },
    "OneCycleLR": {
        "max_lr": _noted("max_lr"),
        "epochs": lambda s: None,
        "steps_per_epoch": lambda s: None,
        "pct_start": lambda s: _short(_phase(s)),
        "anneal_strategy": lambda s: s._anneal_func_type,
        "base_momentum": _cycled("base_momentum"),
        "max_momentum": _cycled("max_momentum"),
        "div_factor": _ratio("max_lr", "initial_lr"),
        "final_div_factor": _ratio("initial_lr", "min_lr"),
        "three_phase": lambda s: len(s._schedule_phases) == 3,
    },
    "ReduceLROnPlateau": {"min_lr": lambda s: PerGroup(s.min_lrs)},
    "SWALR": {
        "swa_lr": _noted("swa_lr"),
        "anneal_strategy": lambda s: s._anneal_strategy,
    },
}
"""By class and argument, where the argument is not an attribute of its own name."""


def class_of(scheduler: Any) -> type:
    """Our class for a torch scheduler.

    Raises:
      PortError: there is none.
    """
    kind = type(scheduler)
    found = {torch.optim.swa_utils.SWALR: SWALR}.get(kind)
    if found is None and getattr(theirs, kind.__name__, None) is kind:
        found = getattr(ours, kind.__name__, None)
    if found is None:
        raise PortError(
            f"jaxpar.parity.port: jaxpar.optim.lr_scheduler has no word for {kind.__module__}.{kind.__name__}"
            "; derive your own from jaxpar.optim.lr_scheduler.LRScheduler, as from torch's."
        )
    return found


def written(scheduler: Any, functions: Functions, frozen: bool = False) -> str:
    """The call that makes a scheduler: `lr_scheduler.StepLR(optimizer, step_size=30)`.

    Args:
      functions: gets the functions of the user that it needs.
      frozen: whether our optimizer has one group more, at the end, whose parameters stay as they are.
    """
    kind = class_of(scheduler)
    word = f"swa_utils.{kind.__name__}" if kind is SWALR else f"lr_scheduler.{kind.__name__}"
    if kind.__name__ in MEMBERS:
        members = ", ".join(written(each, functions, frozen) for each in scheduler._schedulers)
        if kind.__name__ == "ChainedScheduler":
            return f"{word}([{members}], optimizer)"
        return f"{word}(optimizer, [{members}], milestones={list(scheduler._milestones)})"
    given = ["optimizer"]
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("optimizer", "last_epoch"):
            continue
        value = READ.get(kind.__name__, {}).get(name, lambda s, name=name: getattr(s, name))(scheduler)
        text = _text(value, parameter.default, functions, frozen)
        given += [f"{name}={text}"] if text else []
    return f"{word}({', '.join(given)})"


def _text(value: Any, default: Any, functions: Functions, frozen: bool) -> str:
    """A value as Python writes it; empty if it is the default, or nothing."""
    if isinstance(value, PerGroup):
        several = list(value.values)
        if any(each is not several[0] and each != several[0] for each in several):
            several += several[-1:] if frozen else []
            return f"[{', '.join(functions.text(plain(each)) for each in several)}]"
        value = several[0]
    if value is None or (default is not inspect.Parameter.empty and value == default):
        return ""
    return functions.text(plain(value))
