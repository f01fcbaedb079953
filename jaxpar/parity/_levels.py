"""The three questions, each a loop of steps: who runs, from where, and what is held against what.

          runs                                       every step starts from
semantic  torch float64, Flax float64                each side's own last step
numeric   oracle torch float64, torch and Flax in    the reference's weights; one step
          the type that is asked about
trajectory  the same three                           the reference's last step (resync), or own
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ._comparison import Curve
from ._distance import unit_roundoff
from ._measure import Difference, Kind, measure
from ._noise import noise
from ._sides.flax_side import FlaxSide
from ._sides.task import Batch, Named, Seen
from ._sides.torch_side import TorchSide

MEMBERS = 5
"""Runs of the reference on inputs that are off by one ulp: the envelope of a free trajectory."""
OUTSIDE = 3.0
"""A free trajectory may be so many times as far from the oracle as the farthest of them."""
RESOLVED = 2.0**-52 / 1e-10 * 16
"""An update that is a smaller part of its weight than this has no ten digits, even in float64."""

Batches = Callable[[int], Batch]


@dataclasses.dataclass
class Findings:
    """What a level finds, step by step, so that what was done is not lost when it is stopped."""

    differences: list[Difference] = dataclasses.field(default_factory=list)
    noise: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    curve: Curve | None = None
    steps: int = 0


@dataclasses.dataclass(frozen=True)
class Sides:
    """The models at work, all from the same weights.

    Attributes:
      reference, candidate: in the type that is asked about.
      oracle: torch in float64; the reference itself at the semantic level.
      single: torch in float32, for the semantic level's question which gradients are noise.
    """

    reference: TorchSide
    candidate: FlaxSide
    oracle: TorchSide | None = None
    single: TorchSide | None = None


def semantic(sides: Sides, batches: Batches, steps: int, findings: Findings) -> Iterator[int]:
    """Both in float64, each going on from its own last step."""
    before = (sides.candidate.weights(), sides.reference.weights())
    for step in range(1, steps + 1):
        batch = batches(step)
        reference = sides.reference.step(batch)
        if step == 1 and sides.single:
            findings.noise |= noise(reference.gradients, sides.single.step(batch).gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += _measured(candidate, reference, step)
        if sides.candidate.tx:
            findings.differences += _resolved_updates(before, (candidate, reference), step)
        # What is only rounding must not drift: statistics behind it would follow.
        sides.candidate.load({name: reference.weights[name] for name in findings.noise}, {})
        before = (sides.candidate.weights(), reference.weights)
        findings.steps = step
        yield step


def numeric(sides: Sides, batches: Batches, steps: int, findings: Findings) -> Iterator[int]:
    """One step in a lower precision, held against the reference's own error there."""
    assert sides.oracle
    for step in range(1, steps + 1):
        batch = batches(step)
        oracle, reference = sides.oracle.step(batch), sides.reference.step(batch)
        findings.noise |= noise(oracle.gradients, reference.gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += _measured(candidate, reference, step, oracle)
        findings.steps = step
        yield step


def resynchronised(sides: Sides, batches: Batches, steps: int, findings: Findings) -> Iterator[int]:
    """Every step starts from the reference's weights, statistics and optimizer state.

    The optimizer state of the candidate follows from its own gradients at the reference's weights: it
    needs no translation, and its error stays that of one step's gradient.
    """
    assert sides.oracle
    errors: list[tuple[float, float]] = []
    for step in range(1, steps + 1):
        batch = batches(step)
        sides.oracle.continue_from(sides.reference)
        before = sides.reference.weights()
        sides.candidate.load(before, sides.reference.state())
        oracle, reference = sides.oracle.step(batch), sides.reference.step(batch)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.noise |= noise(oracle.gradients, reference.gradients)
        findings.differences += _measured(candidate, reference, step, oracle)
        moves = [_moved(before, seen.weights) for seen in (candidate, reference, oracle)]
        findings.differences += _updates(moves, reference.weights, step)
        errors.append((_distance(moves[0], moves[2], findings), _distance(moves[1], moves[2], findings)))
        own = tuple(error for _, error in errors)
        numbers = tuple(range(1, step + 1))
        findings.curve = Curve(numbers, tuple(error for error, _ in errors), own, own, resync=True)
        findings.steps = step
        yield step


def free(sides: Sides, batches: Batches, steps: int, findings: Findings) -> Iterator[int]:
    """Nobody is set back. Distances from the oracle, beside those of runs on inputs one ulp off."""
    assert sides.oracle
    start = sides.oracle.weights()
    members = [sides.reference, *(copy.deepcopy(sides.reference) for _ in range(MEMBERS))]
    candidate: list[float] = []
    envelope: list[tuple[float, float]] = []
    for step in range(1, steps + 1):
        batch = batches(step)
        oracle = sides.oracle.step(batch)
        seen = [member.step(_nudged(batch, i)) for i, member in enumerate(members)]
        mine = sides.candidate.step(batch, seen[0].masks)
        if step == 1:
            findings.noise |= noise(oracle.gradients, seen[0].gradients)
            findings.differences += _measured(mine, seen[0], step, oracle)
        way = _moved(start, oracle.weights)
        distances = [_distance(_moved(start, each.weights), way, findings) for each in (mine, *seen)]
        candidate.append(distances[0])
        envelope.append((min(distances[1:]), max(distances[1:])))
        low, high = zip(*envelope, strict=True)
        numbers = tuple(range(1, step + 1))
        outside = _first_outside(candidate, high, mine)
        findings.curve = Curve(numbers, tuple(candidate), low, high, outside, resync=False)
        findings.steps = step
        yield step


def _measured(c: Seen, r: Seen, step: int, o: Seen | None = None) -> list[Difference]:
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


def _resolved_updates(before: tuple[Named, Named], after: tuple[Seen, Seen], step: int) -> list[Difference]:
    """The weights after the step, and those updates that are large enough to have digits."""
    weights = [seen.weights for seen in after]
    c, r = (_moved(b, w) for b, w in zip(before, weights, strict=True))
    kept = [n for n in r if n in c and _top(r[n]) > RESOLVED * _top(before[1][n])]
    updates = measure({n: c[n] for n in kept}, {n: r[n] for n in kept}, Kind.UPDATE, step)
    return updates + measure(*weights, Kind.WEIGHT, step)


def _updates(moves: list[Named], weights: Named, step: int) -> list[Difference]:
    """Candidate, reference and oracle. An update is read off weights, whose rounding is in it."""
    candidate, reference, oracle = moves
    found: list[Difference] = []
    for name in dict.fromkeys([*reference, *candidate]):
        c, r, o = ({name: side[name]} if name in side else {} for side in moves)
        unit = unit_roundoff(weights[name].dtype) if name in weights else None
        if unit and name in oracle and (moved := _top(oracle[name])):
            unit *= max(1.0, _top(weights[name]) / moved)
        found += measure(c, r, Kind.UPDATE, step, oracle=o, unit=unit)
    return found


def _top(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))


def _moved(before: Named, after: Named) -> Named:
    """What a step added, in float64 so that the difference itself adds no rounding."""
    return {
        name: after[name].astype(np.float64) - before[name].astype(np.float64)
        for name in after
        if name in before and after[name].shape == before[name].shape
    }


def _distance(moved: Named, oracle: Named, findings: Findings) -> float:
    """|moved - oracle| / |oracle| over all parameters that are no noise, as one long vector."""
    names = [name for name in oracle if name in moved and name not in findings.noise]
    error = sum(float(np.square(moved[name] - oracle[name]).sum()) for name in names)
    way = sum(float(np.square(oracle[name]).sum()) for name in names)
    return (error / way) ** 0.5 if way else error**0.5


def _nudged(batch: Batch, member: int) -> Batch:
    """Inputs one ulp up or down, element by element; member 0 has the inputs as they are."""
    if member == 0:
        return batch
    random = np.random.RandomState(member)

    def nudge(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return x
        single = x.astype(np.float32)
        up = random.random_sample(x.shape) < 0.5
        return np.nextafter(single, np.where(up, np.float32(np.inf), np.float32(-np.inf)))

    return dataclasses.replace(batch, inputs=tuple(map(nudge, batch.inputs)))


def _first_outside(candidate: list[float], high: tuple[float, ...], seen: Seen) -> int | None:
    types: set[Any] = {x.dtype for x in seen.weights.values() if x.dtype.kind not in "biu"}
    floor = 16 * max((float(np.finfo(t).eps) if t.kind == "f" else 2.0**-8 for t in types), default=0.0)
    for step, (error, top) in enumerate(zip(candidate, high, strict=True), start=1):
        if error > OUTSIDE * top + floor:
            return step
    return None
