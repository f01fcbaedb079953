"""What one step shows of both sides, measured: outputs, loss, state, gradients, updates."""

from __future__ import annotations

import numpy as np

from ._distance import unit_roundoff
from ._measure import Difference, Kind, measure
from ._sides.task import Named, Seen

RESOLVED = 2.0**-52 / 1e-10 * 16
"""An update that is a smaller part of its weight than this has no ten digits, even in float64."""


def measured(c: Seen, r: Seen, step: int, o: Seen | None = None) -> list[Difference]:
    """All that one step shows, in the order of computation."""
    parts = [
        (Kind.OUTPUT, "outputs"),
        (Kind.LOSS, "loss"),
        (Kind.STATE, "state"),
        (Kind.INPUT_GRADIENT, "input_gradients"),
        (Kind.GRADIENT, "gradients"),
    ]
    return [
        difference
        for kind, part in parts
        for difference in measure(
            getattr(c, part), getattr(r, part), kind, step, oracle=getattr(o, part) if o else None
        )
    ]


def resolved_updates(
    before: tuple[Named, Named], after: tuple[Seen, Seen], step: int, left_out: Named
) -> list[Difference]:
    """The weights after the step, and those updates that are large enough to have digits."""
    weights = [seen.weights for seen in after]
    c, r = (moved(b, w) for b, w in zip(before, weights, strict=True))
    kept = [n for n in r if n in c and _top(r[n]) > RESOLVED * _top(before[1][n])]
    found = measure({n: c[n] for n in kept}, {n: r[n] for n in kept}, Kind.UPDATE, step, left_out=left_out)
    return found + measure(weights[0], weights[1], Kind.WEIGHT, step, left_out=left_out)


def updates(moves: list[Named], weights: Named, step: int, left_out: Named) -> list[Difference]:
    """The updates of candidate, reference and oracle, in this order, read off such weights."""
    candidate, reference, oracle = moves
    units = {unit_roundoff(x.dtype) for x in weights.values() if x.dtype.kind not in "biu"}
    unit = max(units, default=None)
    return measure(candidate, reference, Kind.UPDATE, step, oracle, unit, left_out, carriers=weights)


def _top(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))


def moved(before: Named, after: Named) -> Named:
    """What a step added, in float64 so that the difference itself adds no rounding."""
    return {
        name: after[name].astype(np.float64) - before[name].astype(np.float64)
        for name in after
        if name in before and after[name].shape == before[name].shape
    }
