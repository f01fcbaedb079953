"""What one step shows of both sides, measured: outputs, loss, state, gradients, updates."""

from __future__ import annotations

import numpy as np

from ._sides.task import Named, Seen
from .measuring import Difference, Kind, measure, unit_roundoff

RESOLVED = 2.0**-52 / 1e-10 * 16
"""An update that is a smaller part of its weight than this has no ten digits, even in float64."""

PARTS = {
    Kind.OUTPUT: "outputs",
    Kind.LOSS: "loss",
    Kind.STATE: "state",
    Kind.INPUT_GRADIENT: "input_gradients",
    Kind.GRADIENT: "gradients",
}
"""Parts of Seen, in the order of computation."""


def step_differences(
    candidate: Seen, reference: Seen, step: int, oracle: Seen | None = None
) -> list[Difference]:
    """All that one step shows before the update, in the order of computation."""
    found = []
    for kind, part in PARTS.items():
        true = getattr(oracle, part) if oracle else None
        found += measure(getattr(candidate, part), getattr(reference, part), kind, step, oracle=true)
    return found


def resolved_updates(
    before: tuple[Named, Named], after: tuple[Named, Named], step: int, left_out: Named
) -> list[Difference]:
    """The weights after the step, and those updates that are large enough to have digits.

    Args:
      before, after: the weights of candidate and reference.
    """
    c, r = (moved(b, a) for b, a in zip(before, after, strict=True))
    kept = [name for name in r if name in c and _top(r[name]) > RESOLVED * _top(before[1][name])]
    ours, theirs = ({name: side[name] for name in kept} for side in (c, r))
    found = measure(ours, theirs, Kind.UPDATE, step, left_out=left_out)
    return found + measure(*after, Kind.WEIGHT, step, left_out=left_out)


def updates(moves: list[Named], weights: Named, step: int, left_out: Named) -> list[Difference]:
    """The updates of candidate, reference and oracle, in this order, read off such weights."""
    candidate, reference, oracle = moves
    # They are float64 differences; the unit of their rounding is that of the weights they were read off.
    units = {unit_roundoff(x.dtype) for x in weights.values() if x.dtype.kind not in "biu"}
    unit = max(units, default=None)
    return measure(candidate, reference, Kind.UPDATE, step, oracle, unit, left_out, carriers=weights)


def moved(before: Named, after: Named) -> Named:
    """What a step added, in float64 so that the difference itself adds no rounding."""
    return {
        name: after[name].astype(np.float64) - before[name].astype(np.float64)
        for name in after
        if name in before and after[name].shape == before[name].shape
    }


def _top(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))
