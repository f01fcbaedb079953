"""The line of `jaxpar.optim.lr_scheduler` for a torch scheduler, whose attributes have the arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler as torch_schedulers

from jaxpar.optim import lr_scheduler as jaxpar_schedulers
from jaxpar.optim.swa_utils import SWALR

from ....errors import PortError
from .functions import Functions
from .optimizer import plain

MEMBERS = {"SequentialLR", "ChainedScheduler"}


@dataclasses.dataclass(frozen=True)
class PerGroup:
    values: Sequence[Any]


def _note(key: str) -> Callable[[Any], PerGroup]:
    return lambda scheduler: PerGroup([group[key] for group in scheduler.optimizer.param_groups])


def _cycled(key: str) -> Callable[[Any], Any]:
    """Read a note that exists only if the momentum is cycled."""
    return lambda scheduler: _note(key)(scheduler) if scheduler.cycle_momentum else None


def _ratio(above: str, divisor: str) -> Callable[[Any], float]:
    def read(scheduler: Any) -> float:
        group = scheduler.optimizer.param_groups[0]
        return _short(group[above] / group[divisor])

    return read


def _short(x: float) -> float:
    return float(f"{x:.13g}")


def _size(part: Callable[[float], float]) -> Callable[[Any], float]:
    return lambda scheduler: _integral(scheduler.total_size * part(scheduler.step_ratio))


def _integral(x: float) -> float:
    return int(_short(x)) if _short(x).is_integer() else _short(x)


READ: dict[str, dict[str, Callable[[Any], Any]]] = {
    "MultiStepLR": {"milestones": lambda s: sorted(s.milestones.elements())},
    "LambdaLR": {"lr_lambda": lambda s: PerGroup(s.lr_lambdas)},
    "MultiplicativeLR": {"lr_lambda": lambda s: PerGroup(s.lr_lambdas)},
    "CyclicLR": {
        "base_lr": lambda s: PerGroup(s.base_lrs),
        "max_lr": lambda s: PerGroup(s.max_lrs),
        # torch stores the sum of both sizes and their ratio.
        "step_size_up": _size(lambda ratio: ratio),
        "step_size_down": lambda s: None if s.step_ratio == 0.5 else _size(lambda ratio: 1 - ratio)(s),
        "scale_fn": lambda s: s._scale_fn_custom,
        "base_momentum": _cycled("base_momentum"),
        "max_momentum": _cycled("max_momentum"),
    },
    "OneCycleLR": {
        "max_lr": _note("max_lr"),
        # torch stores their product, total_steps.
        "epochs": lambda s: None,
        "steps_per_epoch": lambda s: None,
        "pct_start": lambda s: _short((s._schedule_phases[0]["end_step"] + 1) / s.total_steps),
        "anneal_strategy": lambda s: s._anneal_func_type,
        "base_momentum": _cycled("base_momentum"),
        "max_momentum": _cycled("max_momentum"),
        # torch stores neither factor, only the rates computed with them, in the groups.
        "div_factor": _ratio("max_lr", "initial_lr"),
        "final_div_factor": _ratio("initial_lr", "min_lr"),
        "three_phase": lambda s: len(s._schedule_phases) == 3,
    },
    "ReduceLROnPlateau": {"min_lr": lambda s: PerGroup(s.min_lrs)},
    "SWALR": {"swa_lr": _note("swa_lr"), "anneal_strategy": lambda s: s._anneal_strategy},
}
"""Readers of the arguments that are not attributes of the same name, by class and argument."""


def class_of(scheduler: Any) -> type:
    kind = type(scheduler)
    function = {torch.optim.swa_utils.SWALR: SWALR}.get(kind)
    if function is None and getattr(torch_schedulers, kind.__name__, None) is kind:
        function = getattr(jaxpar_schedulers, kind.__name__, None)
    if function is None:
        raise PortError(
            f"jaxpar.parity.port: jaxpar.optim.lr_scheduler has no word for {kind.__module__}.{kind.__name__}"
            "; derive your own from jaxpar.optim.lr_scheduler.LRScheduler, as from torch's."
        )
    return function


def written(scheduler: Any, functions: Functions, frozen: bool = False) -> str:
    """Write the call that makes a scheduler: `lr_scheduler.StepLR(optimizer, step_size=30)`.

    `functions` collects the user's functions, `frozen` adds a last group of frozen parameters.
    """
    kind = class_of(scheduler)
    name_ = f"swa_utils.{kind.__name__}" if kind is SWALR else f"lr_scheduler.{kind.__name__}"
    if kind.__name__ in MEMBERS:
        members = ", ".join(written(member, functions, frozen) for member in scheduler._schedulers)
        if kind.__name__ == "ChainedScheduler":
            return f"{name_}([{members}], optimizer)"
        return f"{name_}(optimizer, [{members}], milestones={list(scheduler._milestones)})"
    arguments = ["optimizer"]
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("optimizer", "last_epoch"):
            continue
        value = READ.get(kind.__name__, {}).get(name, lambda s, name=name: getattr(s, name))(scheduler)
        text = _text(value, parameter.default, functions, frozen)
        arguments += [f"{name}={text}"] if text else []
    return f"{name_}({', '.join(arguments)})"


def _text(value: Any, default: Any, functions: Functions, frozen: bool) -> str:
    if isinstance(value, PerGroup):
        several = list(value.values)
        if any(value_ is not several[0] and value_ != several[0] for value_ in several):
            # The frozen group needs an entry of its list; its value has no effect.
            several += several[-1:] if frozen else []
            return f"[{', '.join(functions.text(plain(value_)) for value_ in several)}]"
        value = several[0]
    if value is None or (default is not inspect.Parameter.empty and value == default):
        return ""
    return functions.text(plain(value))
