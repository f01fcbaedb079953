"""Argument checks of torch's schedulers, with torch's messages."""

from __future__ import annotations

from collections.abc import Sequence

from ..._arguments import NonNegative


def check_constant(factor: float) -> None:
    if not 0 <= factor <= 1:
        raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")


def check_linear(start_factor: float, end_factor: float) -> None:
    if not 0 < start_factor <= 1:
        raise ValueError(
            "Starting multiplicative factor expected to be greater than 0 and less or equal to 1."
        )
    if not 0 <= end_factor <= 1:
        raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")


def check_restarts(T_0: int, T_mult: int, eta_min: NonNegative) -> None:
    if T_0 <= 0 or not isinstance(T_0, int):
        raise ValueError(f"Expected positive integer T_0, but got {T_0}")
    if T_mult < 1 or not isinstance(T_mult, int):
        raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
    if not isinstance(eta_min, (float, int)):
        raise ValueError(f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}")


def check_cycle(function: str, mode: str, scale_fn: object, up: float, down: float | None) -> None:
    # torch divides by their sum; a part of a step may be a fraction.
    if not up > 0 or not (down is None or down >= 0):
        raise ValueError(
            f"{function}: step_size_up is {up} and step_size_down {down}; a cycle must have a step up."
        )
    if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
        raise ValueError("mode is invalid and scale_fn is None")


def check_one_cycle(pct_start: float, anneal_strategy: str) -> None:
    if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
        raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")


def check_plateau(factor: float, mode: str, threshold_mode: str) -> None:
    if factor >= 1.0:
        raise ValueError("Factor should be < 1.0.")
    if mode not in ("min", "max"):
        raise ValueError(f"mode {mode} is unknown!")
    if threshold_mode not in ("rel", "abs"):
        raise ValueError(f"threshold mode {threshold_mode} is unknown!")


def check_not_empty(name: str, schedulers: Sequence[object]) -> None:
    if len(schedulers) < 1:
        chained = " to be chained" if name == "ChainedScheduler" else ""
        raise ValueError(f"{name} expects at least one scheduler{chained}, but got no scheduler.")


def check_milestones(schedulers: Sequence[object], milestones: Sequence[int]) -> None:
    if len(milestones) != len(schedulers) - 1:
        raise ValueError(
            "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
            f"milestone points, but got number of schedulers {len(schedulers)} and the number of "
            f"milestones to be equal to {len(milestones)}"
        )


def refuse_plateau(name: str, i: int, is_plateau: bool) -> None:
    if is_plateau:
        raise ValueError(
            f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs "
            f"to be specified when calling `step`, but got one at index {i} in the given schedulers "
            "sequence."
        )


def total_of(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        return _positive("total_steps", total_steps)
    if epochs is None or steps_per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    return _positive("epochs", epochs) * _positive("steps_per_epoch", steps_per_epoch)


def _positive(what: str, n: int) -> int:
    if n <= 0 or not isinstance(n, int):
        raise ValueError(f"Expected positive integer {what}, but got {n}")
    return n
