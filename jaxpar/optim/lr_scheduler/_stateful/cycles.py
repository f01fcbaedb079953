"""Rates that follow a cosine, or rise and fall in cycles, and momenta that do the opposite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from flax import nnx

from ...._arguments import NonNegative, Positive
from ..._groups import ParamGroup, PerGroup, check_optimizer, for_each_group, param_groups_of
from .._checks import check_cycle, check_one_cycle, check_restarts, total_of
from .scheduler import LRScheduler, attributes


class CyclicLR(LRScheduler):
    """Write the rates of `cyclic_lr` into an optimizer, as torch's class of this name.

    Rates and momenta may be lists, with one for each parameter group. With `cycle_momentum` the momentum
    (Adam's beta1) falls where the rate rises; ValueError for an optimizer without one.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        base_lr: PerGroup,
        max_lr: PerGroup,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: NonNegative = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: PerGroup = 0.8,
        max_momentum: PerGroup = 0.9,
        last_epoch: int = -1,
    ):
        self.optimizer = check_optimizer(optimizer)
        check_cycle("CyclicLR", mode, scale_fn, step_size_up, step_size_down)
        lows = for_each_group("base_lr", optimizer, base_lr)
        self.max_lrs = for_each_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(optimizer)
        if last_epoch == -1:
            for group, lr in zip(self._groups, lows, strict=True):
                group["lr"] = lr
            if cycle_momentum:
                self.base_momentums, self.max_momentums = _start_momentum(
                    optimizer, base_momentum, max_momentum
                )
        elif cycle_momentum:
            self.base_momentums = for_each_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = for_each_group("max_momentum", optimizer, max_momentum)
        super().__init__(optimizer, last_epoch)
        # LRScheduler reads "initial_lr", which may come from an earlier scheduler.
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """Return the amplitude of a cycle, or of a step."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[float]:
        t = self.last_epoch
        cycle = math.floor(1 + t / self.total_size)
        x = 1.0 + t / self.total_size - cycle
        rising = x <= self.step_ratio
        part = x / self.step_ratio if rising else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else t)
        if self.cycle_momentum:
            pairs = zip(self._groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in pairs:
                _write_momentum(group, self.use_beta1, high - (high - low) * part * scale)
        return [
            low + (high - low) * part * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the state; for `scale_fn` an object's attributes, as in torch."""
        custom = self._scale_fn_custom
        return {**super().state_dict(), "_scale_fn_custom": None if custom is None else attributes(custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_state(state_dict)
        custom, saved = self._scale_fn_custom, state_dict["_scale_fn_custom"]
        super().load_state_dict({**state_dict, "_scale_fn_custom": custom})
        if saved is not None:
            custom.__dict__.update(saved)


class OneCycleLR(LRScheduler):
    """Write the rates of `one_cycle_lr` into an optimizer, as torch's class of this name.

    Groups and momenta are as in `CyclicLR`. A step after the last raises ValueError.
    """

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        max_lr: PerGroup,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: PerGroup = 0.85,
        max_momentum: PerGroup = 0.95,
        div_factor: NonNegative = 25.0,
        final_div_factor: NonNegative = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ):
        self.optimizer = check_optimizer(optimizer)
        self.total_steps = total_of(total_steps, epochs, steps_per_epoch)
        check_one_cycle(pct_start, anneal_strategy)
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        self.cycle_momentum = cycle_momentum
        highs = for_each_group("max_lr", optimizer, max_lr)
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(optimizer)
        if last_epoch == -1:
            for group, high in zip(self._groups, highs, strict=True):
                group["initial_lr"] = high / div_factor
                group["max_lr"] = high
                group["min_lr"] = group["initial_lr"] / final_div_factor
            if cycle_momentum:
                _start_momentum(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        t = self.last_epoch
        if t > self.total_steps:
            raise ValueError(
                f"Tried to step {t} times. The specified number of total steps is {self.total_steps}"
            )
        before = [0.0, *(phase["end_step"] for phase in self._schedule_phases)]
        i = next((i for i, end in enumerate(before[1:-1]) if t <= end), len(before) - 2)
        phase = self._schedule_phases[i]
        part = (t - before[i]) / (phase["end_step"] - before[i])
        if self.cycle_momentum:
            for group in self._groups:
                ends = group[phase["start_momentum"]], group[phase["end_momentum"]]
                _write_momentum(group, self.use_beta1, self._anneal(*ends, part))
        return [
            self._anneal(group[phase["start_lr"]], group[phase["end_lr"]], part) for group in self._groups
        ]

    def _anneal(self, start: float, end: float, part: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
        return (end - start) * part + start


def _phases(total: int, pct_start: float, three_phase: bool) -> list[dict[str, Any]]:
    """Return each phase's end, and the keys of the group's numbers between which it anneals."""
    keys = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
    phases = [(float(pct_start * total) - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
    if three_phase:
        middle = float(2 * pct_start * total) - 2
        phases.append((middle, "max_lr", "initial_lr", "base_momentum", "max_momentum"))
        phases.append((total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"))
    else:
        phases.append((total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"))
    return [dict(zip(keys, phase, strict=True)) for phase in phases]


def _uses_beta1(optimizer: nnx.Optimizer) -> bool:
    group = param_groups_of(optimizer)[0]
    if "momentum" not in group and "beta1" not in group:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled: make it with a "
            "momentum other than 0, or set cycle_momentum=False."
        )
    return "beta1" in group


def _start_momentum(optimizer: nnx.Optimizer, base: Any, largest: Any) -> tuple[list[float], list[float]]:
    """Set every group's momentum to its highest value; return the lowest and highest values."""
    lows = for_each_group("base_momentum", optimizer, base)
    highs = for_each_group("max_momentum", optimizer, largest)
    for group, low, high in zip(param_groups_of(optimizer), lows, highs, strict=True):
        _write_momentum(group, _uses_beta1(optimizer), high)
        group["max_momentum"], group["base_momentum"] = high, low
    return lows, highs


def _write_momentum(group: ParamGroup, use_beta1: bool, value: float) -> None:
    group["beta1" if use_beta1 else "momentum"] = value


class CosineAnnealingLR(LRScheduler):
    """Write the rates of `cosine_annealing_lr` into an optimizer, as torch's class of this name."""

    def __init__(
        self, optimizer: nnx.Optimizer, T_max: Positive, eta_min: NonNegative = 0.0, last_epoch: int = -1
    ):
        self.T_max, self.eta_min = int(T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        t, T, low, rates = self.last_epoch, self.T_max, self.eta_min, self._rates()
        if self._is_initial:
            return rates
        if self._step_count == 1 and t > 0:
            return [low + (lr - low) * (1 + math.cos(t * math.pi / T)) / 2 for lr in self.base_lrs]
        if (t - 1 - T) % (2 * T) == 0:  # from the bottom, where the recursion would divide by zero
            pairs = zip(self.base_lrs, rates, strict=True)
            return [lr + (base - low) * (1 - math.cos(math.pi / T)) / 2 for base, lr in pairs]
        ratio = (1 + math.cos(math.pi * t / T)) / (1 + math.cos(math.pi * (t - 1) / T))
        return [ratio * (lr - low) + low for lr in rates]

    def _get_closed_form_lr(self) -> list[float]:
        low = self.eta_min
        part = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [low + (lr - low) * part / 2 for lr in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Write the rates of `cosine_annealing_warm_restarts` as torch's class of this name."""

    def __init__(
        self,
        optimizer: nnx.Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: NonNegative = 0.0,
        last_epoch: int = -1,
    ):
        check_restarts(T_0, T_mult, eta_min)
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        low = self.eta_min
        part = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [low + (lr - low) * part / 2 for lr in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Write the rate of the next epoch, or of `epoch`: `scheduler.step(epoch + i / len(loader))`."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0:
            self.T_cur, self.T_i = epoch, self.T_0
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())
