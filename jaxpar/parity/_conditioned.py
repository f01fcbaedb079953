"""Conditioned: is a difference only what float64 can resolve of such a number?

The mean of what a norm has just centred, a gradient through two norms: most digits cancel, in torch too.
How many is seen from torch itself. Where models differ, torch runs again with the result of every
operation, forward and backward, moved at random by a unit of float64 (stochastic arithmetic, as in CADNA).
A tensor that moves by more than rounding does gets a bound in proportion, and where nothing of it can be
known there is no verdict.
"""

from __future__ import annotations

import dataclasses
import math

from ._comparison import Comparison
from ._levels import Batches, resolved_updates, step_differences
from ._pair import Pair
from .measuring import Judged, Kind, Outcome

SEEDS = (1, 2, 3)
FACTOR = 16.0
"""The other framework rounds in other places: a difference may be so many times what moving torch's did."""
NOTHING = 1e-3
"""Where the bound would be higher there is no verdict."""
OUTPUTS = 1e-6
"""The highest bound of an output or a loss, which are what a model is for."""

Key = tuple[Kind, str, int]


def conditioned(pair: Pair, batches: Batches, compared: Comparison) -> Comparison:
    """The comparison, with other outcomes where torch's own numbers say that digits are lost."""
    small = [row for row in compared.different if row.difference.fault is None]
    if not small:
        return compared
    moves = _moves(pair, batches, max(row.difference.step for row in small))
    rows = tuple(_judged(row, moves) if row in small else row for row in compared.rows)
    return dataclasses.replace(compared, rows=rows)


def _moves(pair: Pair, batches: Batches, steps: int) -> dict[Key, float]:
    """How far each tensor goes, relatively, when the results of torch's operations are moved by a unit."""
    found: dict[Key, float] = {}
    for seed in SEEDS:
        reference, moved = pair.reference("float64"), pair.reference("float64")
        moved.rounding = seed
        for number in range(1, steps + 1):
            moved.continue_from(reference)
            before = moved.weights(), reference.weights()
            true = reference.step(batches(number))
            seen = moved.step(batches(number))
            measured = step_differences(seen, true, number)
            measured += resolved_updates(before, (seen.weights, true.weights), number, {})
            for d in measured:
                key = d.kind, d.name, d.step
                found[key] = max(d.relative, found.get(key, 0.0))
    return found


def _judged(row: Judged, moves: dict[Key, float]) -> Judged:
    d = row.difference
    moved = moves.get((d.kind, d.name, d.step), 0.0)
    limit = FACTOR * moved
    if d.kind in (Kind.OUTPUT, Kind.LOSS):
        limit = min(limit, OUTPUTS)
    if not math.isfinite(moved) or d.relative > limit:
        return row
    reason = f"most digits cancel in it: roundings in torch move it by {moved:.2g}, relatively"
    outcome = Outcome.NOISE if limit > NOTHING else Outcome.SAME
    return dataclasses.replace(row, outcome=outcome, limit=limit, reason=reason)
