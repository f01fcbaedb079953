"""Measuring and judging: how far tensors are apart, and whether that is near enough.

A difference is the largest |jaxpar - PyTorch| in a tensor over the largest |PyTorch| in it. NaN,
infinity, another shape, or a tensor that only one side has is an infinite difference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one side shows of a step, in the order of computation; statistics and weights after it."""

    outputs: Tensors
    loss: Tensors
    gradients: Tensors
    statistics: Tensors
    weights: Tensors


KINDS = tuple(field.name for field in dataclasses.fields(Seen))


@dataclasses.dataclass(frozen=True)
class Difference:
    epoch: int
    step: int
    kind: str
    name: str
    size: float
    reason: str = ""
    """Why the size is infinite."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    tolerance: float
    compared: int
    """How many pairs of tensors."""
    largest: Difference | None
    first: Difference | None
    """The first one beyond the tolerance."""

    @property
    def same(self) -> bool:
        return self.compared > 0 and self.first is None


def measure(ours: Tensors, reference: Tensors, kind: str, epoch: int, step: int) -> list[Difference]:
    """One difference for every name on either side."""
    return [
        Difference(epoch, step, kind, name, *_distance(ours.get(name), reference.get(name)))
        for name in dict.fromkeys([*reference, *ours])
    ]


def measure_all(ours: Seen, reference: Seen, epoch: int, step: int) -> list[Difference]:
    """Every tensor of a step."""
    return [
        difference
        for kind in KINDS
        for difference in measure(getattr(ours, kind), getattr(reference, kind), kind, epoch, step)
    ]


def judge(differences: Sequence[Difference], tolerance: float) -> Verdict:
    beyond = (d for d in differences if not d.size <= tolerance)
    largest = max(differences, key=lambda d: d.size, default=None)
    return Verdict(tolerance, len(differences), largest, next(beyond, None))


def _distance(ours: np.ndarray | None, reference: np.ndarray | None) -> tuple[float, str]:
    if ours is None or reference is None:
        return math.inf, f"only in {'PyTorch' if ours is None else 'jaxpar'}"
    if ours.shape != reference.shape:
        return math.inf, f"shape {ours.shape} in jaxpar, {reference.shape} in PyTorch"
    for side, x in (("jaxpar", ours), ("PyTorch", reference)):
        if not np.isfinite(x).all():
            return math.inf, f"not finite in {side}"
    apart = float(np.abs(ours - reference).max(initial=0))
    scale = float(np.abs(reference).max(initial=0))
    if scale == 0 and apart > 0:
        return math.inf, "zero in PyTorch, not in jaxpar"
    return apart / (scale or 1), ""
