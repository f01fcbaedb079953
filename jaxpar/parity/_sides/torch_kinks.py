"""Watch the inputs of activations: how many are at a kink, and which sides of a kink none reaches.

At a kink, rounding decides between two derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .._reach import LINES, NOT_REACHED, some
from ..measuring import kinks
from .lines_run import LinesRun, files_of
from .torch_choices import TorchChoices
from .torch_side import to_numpy

POINTS: dict[str, tuple[float, ...]] = {  # of the kinks, for default settings
    **dict.fromkeys(["relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "abs"], (0.0,)),
    **dict.fromkeys(["elu", "elu_", "celu", "celu_", "selu", "selu_"], (0.0,)),
    "relu6": (0.0, 6.0),
    **dict.fromkeys(["hardtanh", "hardtanh_"], (-1.0, 1.0)),
    **dict.fromkeys(["hardswish", "hardsigmoid"], (-3.0, 3.0)),
    "softshrink": (-0.5, 0.5),
    "hardshrink": (-0.5, 0.5),
}

Activation = tuple[str, tuple[float, ...]]  # name and kinks

T = TypeVar("T")


class _Count(TorchFunctionMode):
    """Counts elements, and elements near a kink, by function and its kinks; thread-local as all modes are."""

    def __init__(self) -> None:
        super().__init__()
        self.choices = TorchChoices()
        self.near: dict[Activation, int] = {}
        self.all: dict[Activation, int] = {}
        self.exact: dict[Activation, bool] = {}
        self.ranges: dict[Activation, tuple[float, float]] = {}

    def __torch_function__(
        self, function: Callable[..., T], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> T:
        # By name, because relu is three functions: torch's, the functional one and the tensor's method.
        name = getattr(function, "__name__", "")
        kwargs = kwargs or {}
        self.choices.look(function, name, args, kwargs)
        if name in POINTS and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self._count(name, to_numpy(args[0]), kwargs)
        return function(*args, **kwargs)

    def _count(self, name: str, x: np.ndarray, options: dict[str, Any]) -> None:
        points = POINTS[name]
        if name.startswith("hardtanh"):  # torch passes its bounds on by name
            points = options.get("min_val", points[0]), options.get("max_val", points[1])
        # nn.ReLU6 calls hardtanh.
        activation = "relu6" if points == (0, 6) else name.rstrip("_"), points
        self.near[activation] = self.near.get(activation, 0) + kinks(x, points)
        self.all[activation] = self.all.get(activation, 0) + x.size
        self.exact[activation] = self.exact.get(activation, False) or bool(np.isin(x, points).any())
        low, high = self.ranges.get(activation, (np.inf, -np.inf))
        self.ranges[activation] = min(low, x.min(initial=np.inf)), max(high, x.max(initial=-np.inf))


@contextmanager
def counted(notes: list[str], module: torch.nn.Module) -> Iterator[None]:
    """Append to `notes` what the activations got from the torch code that runs inside, and its gaps."""
    lines = LinesRun(files_of(module))
    with _Count() as count, lines:
        yield
    notes += [NOT_REACHED + gap for gap in count.choices.gaps()]
    if left_out := lines.left_out():
        notes.append(f"{NOT_REACHED}torch's code in {some(left_out, LINES)}")
    for activation, near in count.near.items():
        name, points = activation
        if near:
            notes.append(
                f"{near:,} of {count.all[activation]:,} elements that {name} was given are within 1e-6 "
                "of its kink, where the derivatives of two frameworks may differ"
            )
        if not count.exact[activation]:
            notes.append(f"{NOT_REACHED}the derivative of {name} exactly at its kink")
        low, high = count.ranges[activation]
        notes += [f"{NOT_REACHED}{name} gets no number below {point:g}" for point in points if low >= point]
        notes += [f"{NOT_REACHED}{name} gets no number above {point:g}" for point in points if high <= point]
