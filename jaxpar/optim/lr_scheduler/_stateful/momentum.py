"""The momentum of a group, which cycles against the rate: "momentum", or the first of Adam's betas."""

from __future__ import annotations

from typing import Any

from flax import nnx

from ..._groups import ParamGroup, for_each_group, param_groups_of


def uses_beta1(optimizer: nnx.Optimizer) -> bool:
    """Return whether the momentum is Adam's beta1.

    Raises: ValueError: the optimizer's state holds neither.
    """
    group = param_groups_of(optimizer)[0]
    if "momentum" not in group and "beta1" not in group:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled: make it with a "
            "momentum other than 0, or set cycle_momentum=False."
        )
    return "beta1" in group


def start(optimizer: nnx.Optimizer, base: Any, largest: Any) -> tuple[list[float], list[float]]:
    """Set every group's momentum to its highest value; return the lowest and highest values."""
    lows = for_each_group("base_momentum", optimizer, base)
    highs = for_each_group("max_momentum", optimizer, largest)
    for group, low, high in zip(param_groups_of(optimizer), lows, highs, strict=True):
        write(group, uses_beta1(optimizer), high)
        group["max_momentum"], group["base_momentum"] = high, low
    return lows, highs


def write(group: ParamGroup, use_beta1: bool, value: float) -> None:
    group["beta1" if use_beta1 else "momentum"] = value
