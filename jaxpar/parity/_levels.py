"""The levels, each a loop of steps: which models run, from which state, and what is compared.

            models                                     every step starts from
semantic    torch float64, Flax float64                the side's previous step
numeric     oracle torch float64, torch and Flax in    the reference's weights; one step
            the dtype under test
as it runs  the oracle, torch and Flax as they are     the reference's weights; one step
trajectory  as numeric                                 the reference's previous step (resync), or its own

torch's sides may be live or replayed from a record, so this file does not import torch.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from ._comparison_data import Curve
from ._sides.constants import Constants
from ._sides.step_data import Batch, Named, Observation
from ._tensors import widened
from .measuring import Difference, Kind, measure, noise, noise_elements, unit_roundoff

if TYPE_CHECKING:
    from ._sides.candidate import Candidate
    from ._sides.torch_side import TorchSide

MEMBERS = 5  # runs of the reference on inputs one ulp off, the envelope of a free trajectory
OUTSIDE = 3.0  # how many times the envelope's largest error a free trajectory's error may be
# The smallest ratio of update to weight at which a float64 difference of weights has ten digits.
RESOLVED = 2.0**-52 / 1e-10 * 16

PARTS = {
    Kind.OUTPUT: "outputs",
    Kind.LOSS: "loss",
    Kind.STATE: "state",
    Kind.INPUT_GRADIENT: "input_gradients",
    Kind.GRADIENT: "gradients",
}  # in the order of computation

Batches = Callable[[int], Batch]


class Reference(Protocol):
    """torch's side, live or replayed from a record."""

    def step(self, batch: Batch) -> Observation: ...

    def weights(self) -> Named: ...


R = TypeVar("R", bound=Reference)


@dataclasses.dataclass(frozen=True)
class Sides(Generic[R]):
    """The models of a level, all with the same weights: torch and Flax in the dtype under test."""

    reference: R
    candidate: Candidate
    oracle: R | None = None  # torch in float64; at the semantic level, the reference is
    single: Callable[[], R] | None = None  # torch in float32, which shows which gradients are noise


@dataclasses.dataclass(frozen=True)
class LevelStep:
    number: int
    batch: Batch
    candidate: Observation
    reference: Observation
    oracle: Observation | None = None


@dataclasses.dataclass
class Findings:
    """The measurements of a level, collected step by step so that Ctrl-C loses none."""

    differences: list[Difference] = dataclasses.field(default_factory=list)
    noise: dict[str, str] = dataclasses.field(default_factory=dict)
    noise_elements: Named = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    curve: Curve | None = None
    steps: int = 0
    constants: tuple[Constants, Constants] | None = None  # torch's and Flax's, at the level semantic
    rows: Named = dataclasses.field(default_factory=dict)  # whether a row of a parameter had a gradient

    def add_rows(self, step: LevelStep) -> None:
        for gradients in (step.candidate.gradients, step.reference.gradients):
            for name, x in gradients.items():
                if x.ndim > 1:
                    reached = (x != 0).any(axis=tuple(range(1, x.ndim)))
                    before = self.rows.get(name, reached)
                    self.rows[name] = before | reached if before.shape == reached.shape else before

    def add_noise(self, double: Named, single: Named) -> None:
        self.noise |= noise(double, single)
        for name, mask in noise_elements(double, single).items():
            self.noise_elements[name] = mask | self.noise_elements.get(name, False)


def semantic(sides: Sides[R], batches: Batches, steps: int, findings: Findings) -> Iterator[LevelStep]:
    """Run both sides in float64, each from its previous step's weights unless the caller loads others."""
    reference_weights = sides.reference.weights()
    for number in range(1, steps + 1):
        batch, before = batches(number), (sides.candidate.weights(), reference_weights)
        reference = sides.reference.step(batch)
        if number == 1 and sides.single:
            findings.add_noise(reference.gradients, sides.single().step(batch).gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += step_differences(candidate, reference, number)
        if sides.candidate.tx:
            after = candidate.weights, reference.weights
            findings.differences += resolved_updates(before, after, number, findings.noise_elements)
        # Adam turns even noise into steps of the learning rate, so these parameters, and the statistics after
        # them, would drift apart.
        sides.candidate.load({name: reference.weights[name] for name in findings.noise}, {})
        reference_weights = reference.weights
        yield LevelStep(number, batch, candidate, reference)


def numeric(sides: Sides[R], batches: Batches, steps: int, findings: Findings) -> Iterator[LevelStep]:
    """Run one step in a lower precision, and measure against the reference's error in that precision."""
    assert sides.oracle
    for number in range(1, steps + 1):
        batch = batches(number)
        oracle, reference = sides.oracle.step(batch), sides.reference.step(batch)
        findings.add_noise(oracle.gradients, reference.gradients)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.differences += step_differences(candidate, reference, number, oracle)
        yield LevelStep(number, batch, candidate, reference, oracle)


def as_it_runs(sides: Sides[R], batches: Batches, steps: int, findings: Findings) -> Iterator[LevelStep]:
    """Run the numeric step in the models' own dtypes, and note each side's distance from exact arithmetic."""
    for step in numeric(sides, batches, steps, findings):
        assert step.oracle
        for part in ("outputs", "gradients"):
            true = getattr(step.oracle, part)
            torchs, flaxs = (
                _error(getattr(results, part), true) for results in (step.reference, step.candidate)
            )
            findings.notes.append(f"torch's {part} are {torchs:.1g} from exact ones, and Flax's {flaxs:.1g}")
        yield step


def _error(results: Named, true: Named) -> float:
    errors = [0.0]
    for name, o in true.items():
        x = results.get(name)
        if x is not None and x.shape == o.shape and o.dtype.kind in "fc" and _top(o):
            errors.append(_top(widened(x) - o) / _top(o))
    return max(errors)


def resynchronised(
    sides: Sides[TorchSide], batches: Batches, steps: int, findings: Findings
) -> Iterator[LevelStep]:
    """Start every step from the reference's weights and statistics; the candidate keeps its moments."""
    assert sides.oracle
    errors: list[tuple[float, float, float]] = []
    for number in range(1, steps + 1):
        batch = batches(number)
        # Not the optimizer's state, of either: computed from gradients at the reference's weights, its error
        # stays as small as one step's, and Flax's needs no translation. An oracle with the reference's state
        # would share its error, which then counted for the candidate alone.
        sides.oracle.continue_from(sides.reference, with_optimizer=False)
        before = sides.reference.weights()
        sides.candidate.load(before, sides.reference.state())
        oracle, reference = sides.oracle.step(batch), sides.reference.step(batch)
        candidate = sides.candidate.step(batch, reference.masks)
        findings.add_noise(oracle.gradients, reference.gradients)
        findings.differences += step_differences(candidate, reference, number, oracle)
        moves = [_moved(before, results.weights) for results in (candidate, reference, oracle)]
        findings.differences += _updates(moves, reference.weights, number, findings.noise_elements)
        error, reference_error = (_distance(move, moves[2], findings) for move in moves[:2])
        errors.append((error, reference_error, reference_error))
        candidate_errors, low, high = zip(*errors, strict=True)
        findings.curve = Curve(tuple(range(1, number + 1)), candidate_errors, low, high, resync=True)
        yield LevelStep(number, batch, candidate, reference, oracle)


def free(sides: Sides[TorchSide], batches: Batches, steps: int, findings: Findings) -> Iterator[LevelStep]:
    """Run all sides freely, and compare the candidate's drift with runs on inputs that are one ulp off."""
    assert sides.oracle
    start = sides.oracle.weights()
    members = [sides.reference, *(copy.deepcopy(sides.reference) for _ in range(MEMBERS))]
    errors: list[tuple[float, float, float]] = []
    for number in range(1, steps + 1):
        batch = batches(number)
        oracle = sides.oracle.step(batch)
        runs = [member.step(_nudged(batch, i)) for i, member in enumerate(members)]
        candidate = sides.candidate.step(batch, runs[0].masks)
        # Later steps are judged by the curve alone: once a ReLU or a max-pooling flips in one of two healthy
        # runs, their tensors may differ by any amount.
        if number == 1:
            findings.add_noise(oracle.gradients, runs[0].gradients)
            findings.differences += step_differences(candidate, runs[0], number, oracle)
        oracle_move = _moved(start, oracle.weights)
        error, *run_errors = (
            _distance(_moved(start, run.weights), oracle_move, findings) for run in (candidate, *runs)
        )
        errors.append((error, min(run_errors), max(run_errors)))
        candidate_errors, low, high = zip(*errors, strict=True)
        outside = _first_outside(errors, candidate)
        findings.curve = Curve(
            tuple(range(1, number + 1)), candidate_errors, low, high, outside, resync=False
        )
        yield LevelStep(number, batch, candidate, runs[0], oracle)


def _distance(moved: Named, oracle: Named, findings: Findings) -> float:
    """Return |moved - oracle| / |oracle| of all parameters except noise, taken as one vector."""
    names = [name for name in oracle if name in moved and name not in findings.noise]
    error = sum(float(np.square(moved[name] - oracle[name]).sum()) for name in names)
    squared_norm = sum(float(np.square(oracle[name]).sum()) for name in names)
    return (error / squared_norm) ** 0.5 if squared_norm else error**0.5


def _nudged(batch: Batch, member: int) -> Batch:
    """Move every input element one ulp up or down at random; member 0 keeps the inputs."""
    if member == 0:
        return batch
    random = np.random.RandomState(member)

    def nudge(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return x
        single = x.astype(np.float32)
        up = random.random_sample(x.shape) < 0.5
        return np.nextafter(single, np.where(up, np.float32(np.inf), np.float32(-np.inf)))

    return dataclasses.replace(batch, torch_call=batch.torch_call.map(nudge))


def _first_outside(errors: list[tuple[float, float, float]], results: Observation) -> int | None:
    types = {x.dtype for x in results.weights.values() if x.dtype.kind not in "biu"}
    # If every run of the reference takes the same path, the envelope is 0, and rounding would count as
    # different.
    floor = 16 * max((float(np.finfo(t).eps) if t.kind == "f" else 2.0**-8 for t in types), default=0.0)
    outside = (n for n, (error, _, top) in enumerate(errors, start=1) if error > OUTSIDE * top + floor)
    return next(outside, None)


def step_differences(
    candidate: Observation, reference: Observation, step: int, oracle: Observation | None = None
) -> list[Difference]:
    """Measure the step's outputs, loss, state and gradients, in the order of computation."""
    differences = []
    for kind, part in PARTS.items():
        true = getattr(oracle, part) if oracle else None
        differences += measure(getattr(candidate, part), getattr(reference, part), kind, step, oracle=true)
    return differences


def resolved_updates(
    before: tuple[Named, Named], after: tuple[Named, Named], step: int, left_out: Named
) -> list[Difference]:
    """Measure the weights of (candidate, reference), and the updates that are large enough to have digits."""
    c, r = (_Moves(b, a, tuple(_moving(b, a))) for b, a in zip(before, after, strict=True))
    resolved = tuple(name for name in r if name in c and _top(r[name]) > RESOLVED * _top(before[1][name]))
    candidate_moves, reference_moves = (dataclasses.replace(side, names=resolved) for side in (c, r))
    differences = measure(candidate_moves, reference_moves, Kind.UPDATE, step, left_out=left_out)
    return differences + measure(*after, Kind.WEIGHT, step, left_out=left_out)


def _updates(moves: list[Named], weights: Named, step: int, left_out: Named) -> list[Difference]:
    """Measure the updates of candidate, reference and oracle, which are differences of `weights`."""
    candidate, reference, oracle = moves
    # The updates are float64 differences, but they were rounded to the dtype of the weights.
    units = {unit_roundoff(x.dtype) for x in weights.values() if x.dtype.kind not in "biu"}
    unit = max(units, default=None)
    return measure(candidate, reference, Kind.UPDATE, step, oracle, unit, left_out, carriers=weights)


def _moved(before: Named, after: Named) -> Named:
    """Return the step's update of each weight, in float64 so that the subtraction adds no rounding."""
    return dict(_Moves(before, after, tuple(_moving(before, after))))


def _moving(before: Named, after: Named) -> Iterator[str]:
    return (name for name, x in after.items() if name in before and x.shape == before[name].shape)


@dataclasses.dataclass(frozen=True)
class _Moves(Mapping[str, np.ndarray]):
    """The updates of some weights, computed on access: all of them together are as large as the model."""

    before: Named
    after: Named
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> np.ndarray:
        return widened(self.after[name]) - widened(self.before[name])

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _top(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0))
