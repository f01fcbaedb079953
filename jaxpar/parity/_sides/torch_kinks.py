"""Count inputs at a kink of an activation, where rounding decides between two derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch.overrides import TorchFunctionMode

from ..measuring import kinks
from .torch_side import to_numpy

POINTS: dict[str, tuple[float, ...]] = {  # of the kinks, for default settings
    **dict.fromkeys(["relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "abs"], (0.0,)),
    "relu6": (0.0, 6.0),
    "hardtanh": (-1.0, 1.0),
    **dict.fromkeys(["hardswish", "hardsigmoid"], (-3.0, 3.0)),
    "softshrink": (-0.5, 0.5),
    "hardshrink": (-0.5, 0.5),
}

T = TypeVar("T")


class _Count(TorchFunctionMode):
    """Counts elements, and elements near a kink, by function name; thread-local as all modes are."""

    def __init__(self) -> None:
        super().__init__()
        self.near: dict[str, int] = {}
        self.all: dict[str, int] = {}

    def __torch_function__(
        self, function: Callable[..., T], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> T:
        # By name, because relu is three functions: torch's, the functional one and the tensor's method.
        name = getattr(function, "__name__", "")
        if name in POINTS and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self.near[name] = self.near.get(name, 0) + kinks(to_numpy(args[0]), POINTS[name])
            self.all[name] = self.all.get(name, 0) + args[0].numel()
        return function(*args, **(kwargs or {}))


@contextmanager
def counted(notes: list[str]) -> Iterator[None]:
    with _Count() as count:
        yield
    for name, near in count.near.items():
        if near:
            notes.append(
                f"{near:,} of {count.all[name]:,} elements that {name.rstrip('_')} was given are within 1e-6 "
                "of its kink, where the derivatives of two frameworks may differ"
            )
