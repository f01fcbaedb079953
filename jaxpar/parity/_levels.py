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
from ._measure import Difference
from ._noise import noise, noise_elements
from ._sides.flax_side import FlaxSide
from ._sides.task import Batch, Named, Seen
from ._sides.torch_side import TorchSide
from ._step import measured, moved, resolved_updates, updates

MEMBERS = 5
"""Runs of the reference on inputs that are off by one ulp: the envelope of a free trajectory."""
OUTSIDE = 3.0
"""A free trajectory may be so many times as far from the oracle as the farthest of them."""
Batches = Callable[[int], Batch]


@dataclasses.dataclass
class Findings:
    """What a level finds, step by step, so that what was done is not lost when it is stopped."""

    differences: list[Difference] = dataclasses.field(default_factory=list)
    noise: dict[str, str] = dataclasses.field(default_factory=dict)
    noise_elements: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    curve: Curve | None = None
    steps: int = 0

    def add_noise(self, double: Named, single: Named) -> None:
        """From the reference's gradients in two precisions: whole parameters, and parts of others."""
        self.noise |= noise(double, single)
        for name, mask in noise_elements(double, single).items():
            self.noise_elements[name] = mask | self.noise_elements.get(name, False)


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
            findings.add_noise(reference.gradients, sides.single.step(batch).gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += measured(candidate, reference, step)
        if sides.candidate.tx:
            findings.differences += resolved_updates(
                before, (candidate, reference), step, findings.noise_elements
            )
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
        findings.add_noise(oracle.gradients, reference.gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += measured(candidate, reference, step, oracle)
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
        findings.add_noise(oracle.gradients, reference.gradients)
        findings.differences += measured(candidate, reference, step, oracle)
        moves = [moved(before, seen.weights) for seen in (candidate, reference, oracle)]
        findings.differences += updates(moves, reference.weights, step, findings.noise_elements)
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
            findings.add_noise(oracle.gradients, seen[0].gradients)
            findings.differences += measured(mine, seen[0], step, oracle)
        way = moved(start, oracle.weights)
        distances = [_distance(moved(start, each.weights), way, findings) for each in (mine, *seen)]
        candidate.append(distances[0])
        envelope.append((min(distances[1:]), max(distances[1:])))
        low, high = zip(*envelope, strict=True)
        numbers = tuple(range(1, step + 1))
        outside = _first_outside(candidate, high, mine)
        findings.curve = Curve(numbers, tuple(candidate), low, high, outside, resync=False)
        findings.steps = step
        yield step


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
