"""Recognize differences that come only from constants rounded to float32 before the comparison.

A table that torch computes in `__init__` stays float32, while Flax may compute it in `__call__`, in float64.
Rounding explains the difference if torch agrees when it runs with Flax's table. Where Flax has no such table,
each model runs again with its constants perturbed by up to half a unit: that must move every tensor as far as
the models differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ._levels import Batches, Findings, LevelStep, Sides, resolved_updates, semantic, step_differences
from ._sides.constants import Constants
from ._sides.step_data import Named
from ._tensors import widened
from .measuring import Difference, Key, Kind, Outcome, judge, key_of

if TYPE_CHECKING:
    from ._comparison import Comparison
    from ._model_pair import ModelPair

SEEDS = (1, 2, 3)
FACTOR = 4.0  # times the effect of the perturbation is explained, since only a few seeds are tried
FAR = 1e3  # times that: no other seed moves an output or a loss so much farther; a kink's derivative it may
SHARE = 1e-2  # constants that explain a smaller share of the differences are not named
SINGLY = 16  # constants that are perturbed one at a time; each costs a run of both models
CLOSE = 1e-4  # the relative distance up to which two tables count as the same table, computed in float32


def explain_by_constants(
    pair: ModelPair, batches: Batches, compared: Comparison, torchs: Constants, flaxs: Constants
) -> Comparison:
    """Return the comparison with CONSTANTS in place of DIFFERENT if constants explain every difference.

    `torchs` and `flaxs` are the constants that the compared runs had.
    """
    different = compared.different
    if not different or any(row.difference.fault is not None for row in different):
        return compared
    if not torchs.originals and not flaxs.originals:
        return compared
    instead = dict(_alike(torchs.originals, [*flaxs.originals.values(), *flaxs.exact]))
    explanation = _exchanged(pair, batches, compared, torchs, instead) if instead else None
    # If every table of torch has been exchanged, rounding is accounted for, and a mistake is what remains.
    if explanation is None and not (instead and instead.keys() == torchs.originals.keys()):
        explanation = _moved(pair, batches, compared, torchs, flaxs)
    return compared if explanation is None else explanation


def _moved(
    pair: ModelPair, batches: Batches, compared: Comparison, torchs: Constants, flaxs: Constants
) -> Comparison | None:
    """Perturb all constants at once; if that explains the differences, one at a time to name them."""
    different = compared.different
    differences = [row.difference for row in different]
    steps = max(d.step for d in differences)
    base = _Run.of(pair, batches, steps)
    moves: dict[Key, float] = {}
    of_record = pair.recorded_moves()
    for seed in SEEDS:
        moved = _Run.of(pair, batches, steps, Constants(seed), Constants(seed))
        for key, far in _moves(moved, base).items():
            moves[key] = max(far + of_record.get(key, 0.0), moves.get(key, 0.0))
        if any(
            d.kind in (Kind.OUTPUT, Kind.LOSS) and d.max_abs > FAR * FACTOR * moves.get(key_of(d), 0.0)
            for d in differences
        ):
            return None
    if not is_explained(compared, moves):
        return None
    names = [("torch", name) for name in torchs.originals] + [("Flax", name) for name in flaxs.originals]
    alone = {side_and_name: _alone(pair, batches, base, *side_and_name) for side_and_name in names[:SINGLY]}
    worst = _worst(compared)
    enough = SHARE * moves.get(key_of(worst), 0.0)
    guilty = [f"{side}'s {name}" for (side, name), by in alone.items() if by.get(key_of(worst), 0.0) > enough]
    guilty += [f"{len(names) - SINGLY} others"] * (len(names) > SINGLY)
    return explained_by_moves(compared, moves, tuple(guilty))


def _worst(compared: Comparison) -> Difference:
    return max(compared.different, key=lambda row: row.severity).difference


def is_explained(compared: Comparison, moves: Mapping[Key, float]) -> bool:
    differences = [row.difference for row in compared.different]
    return all(d.max_abs <= FACTOR * moves.get(key_of(d), 0.0) for d in differences)


def explained_by_moves(
    compared: Comparison, moves: Mapping[Key, float], guilty: tuple[str, ...]
) -> Comparison:
    """Return the comparison with CONSTANTS in place of DIFFERENT; `moves` explain every difference."""
    worst = _worst(compared)
    far = moves[key_of(worst)] / worst.magnitude if worst.magnitude else moves[key_of(worst)]
    note = (
        f"float32 constants: rounding {', '.join(guilty)} moves {_words(worst)} by {far:.1g}, and the models "
        f"are {worst.relative:.1g} apart; every difference is at most {FACTOR:g} times what rounding does"
    )
    return _with(compared, guilty, note)


def _alone(pair: ModelPair, batches: Batches, base: _Run, side: str, name: str) -> dict[Key, float]:
    # One seed suffices: this run only decides which constants are named.
    moved, still = Constants(SEEDS[0], only=frozenset({name})), Constants()
    both = (moved, still) if side == "torch" else (still, moved)
    return _moves(_Run.of(pair, batches, len(base.steps), *both), base)


def _exchanged(
    pair: ModelPair, batches: Batches, compared: Comparison, torchs: Constants, instead: Named
) -> Comparison | None:
    """Run torch with Flax's tables in place of its own."""
    findings = Findings(
        noise={row.difference.name: row.reason for row in compared.rows if row.outcome is Outcome.NOISE}
    )
    steps = max(row.difference.step for row in compared.rows)
    reference = pair.reference("float64", Constants(instead=instead))
    sides = Sides(reference, pair.candidate(reference))
    for _ in semantic(sides, batches, steps, findings):
        pass
    judged = judge(findings.differences, compared.policy, findings.noise)
    if any(row.outcome is Outcome.DIFFERENT for row in judged):
        return None
    error = max(_apart(torchs.originals[name], x) for name, x in instead.items())
    names = tuple(f"torch's {name}" for name in instead)
    note = (
        f"float32 constants: {', '.join(names)} and Flax's own are {error:.1g} apart, and with Flax's in "
        "torch everything agrees"
    )
    return _with(compared, names, note)


def _alike(torchs: Named, flaxs: Iterable[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Pair torch's constants with the closest table of Flax, if one is close enough."""
    for name, torch_constant in torchs.items():
        # Above 0, because exchanging two equal tables explains nothing.
        fitting = [
            x for x in flaxs if x.size == torch_constant.size and 0 < _apart(torch_constant, x) < CLOSE
        ]
        if fitting:
            yield name, min(fitting, key=lambda x: _apart(torch_constant, x))


def _apart(torch_constant: np.ndarray, flax_constant: np.ndarray) -> float:
    a, b = widened(torch_constant).ravel(), widened(flax_constant).ravel()
    size = float(np.abs(a).max(initial=0))
    return float(np.abs(a - b).max(initial=0)) / size if size else float("inf")


@dataclasses.dataclass(frozen=True)
class _Run:
    """Both models' steps with perturbed constants, and the weights before the first step."""

    start: dict[str, Named]
    steps: list[LevelStep]

    @classmethod
    def of(
        cls,
        pair: ModelPair,
        batches: Batches,
        steps: int,
        torchs: Constants | None = None,
        flaxs: Constants | None = None,
    ) -> _Run:
        reference = pair.reference("float64", torchs)
        candidate = pair.candidate(reference, flaxs)
        start = {"reference": reference.weights(), "candidate": candidate.weights()}
        return cls(start, list(semantic(Sides(reference, candidate), batches, steps, Findings())))


def _moves(moved: _Run, base: _Run) -> dict[Key, float]:
    """Return each tensor's max|difference|, summed over the two models."""
    distances: dict[Key, float] = {}
    for side, start in base.start.items():
        # The perturbed run and the base run start from the same weights.
        before = (start, start)
        for moved_step, base_step in zip(moved.steps, base.steps, strict=True):
            results = getattr(moved_step, side), getattr(base_step, side)
            measured = step_differences(*results, moved_step.number)
            after = results[0].weights, results[1].weights
            measured += resolved_updates(before, after, moved_step.number, {})
            before = after
            for d in measured:
                distances[key_of(d)] = distances.get(key_of(d), 0.0) + d.max_abs
    return distances


def _words(d: Difference) -> str:
    return f"{d.kind.value} {d.name}".strip() if d.name else f"the {d.kind.value}"


def _with(compared: Comparison, names: tuple[str, ...], note: str) -> Comparison:
    change = partial(dataclasses.replace, outcome=Outcome.CONSTANTS, reason=note)
    rows = tuple(change(row) if row.outcome is Outcome.DIFFERENT else row for row in compared.rows)
    return dataclasses.replace(compared, rows=rows, notes=(*compared.notes, note), constants=names)


def moved_by_constants(
    side_with: Callable[[Constants], Any],
    batches: Batches,
    observed: list[LevelStep],
    start: Named,
    constants: Constants,
) -> dict[Key, float]:
    """Return how far one side's tensors move when its constants are perturbed; fills in `constants`."""
    steps = range(1, len(observed) + 1)

    def run(seeded: Constants) -> list[LevelStep]:
        side = side_with(seeded)
        results = [(number, side.step(batches(number))) for number in steps]
        return [LevelStep(number, batches(number), step, step) for number, step in results]

    run(constants)
    farthest: dict[Key, float] = {}
    for seed in SEEDS if constants.originals else ():
        moved, base = (_Run({"reference": start}, both) for both in (run(Constants(seed)), observed))
        for key, far in _moves(moved, base).items():
            farthest[key] = max(far, farthest.get(key, 0.0))
    return farthest


def flax_moved_by_constants(
    pair: ModelPair, batches: Batches, steps: int
) -> tuple[dict[Key, float], list[str]]:
    """Return how far Flax's tensors move when its constants are perturbed, and the constants' names."""

    def run(constants: Constants) -> _Run:
        reference = pair.reference("float64")
        candidate = pair.candidate(reference, constants)
        start = {"candidate": candidate.weights()}
        return _Run(start, [*semantic(Sides(reference, candidate), batches, steps, Findings())])

    constants, farthest = Constants(), dict[Key, float]()
    base = run(constants)
    for seed in SEEDS if constants.originals else ():
        for key, far in _moves(run(Constants(seed)), base).items():
            farthest[key] = max(far, farthest.get(key, 0.0))
    return farthest, [f"Flax's {name}" for name in constants.originals]
