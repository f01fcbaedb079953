"""Loosen the bounds of tensors whose digits cancel, as measured by stochastic arithmetic in torch.

In the mean of what a norm has just centred, or in a gradient through two norms, most digits cancel. torch
shows how many: it runs again with each result moved at random by one unit of float64, as in CADNA.
A tensor that moves farther than rounding gets a bound in proportion; one that moves too far gets no verdict.
Tensors that still differ are judged again from Flax's program compiled without optimizations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ._levels import Batches, Findings, Sides, resolved_updates, semantic, step_differences
from .measuring import Judged, Key, Kind, Outcome, judge, key_of

if TYPE_CHECKING:
    from ._comparison import Comparison
    from ._model_pair import ModelPair
    from ._sides.constants import Constants
    from ._sides.torch_side import TorchSide

SEEDS = (1, 2, 3)
FACTOR = 16.0  # times the effect of perturbing torch is rounding: Flax rounds at different operations
NOTHING = 1e-3  # the highest bound of a verdict; a tensor that would need a higher one is noise
OUTPUTS = 1e-6  # the highest bound of an output or a loss: with fewer digits a model is not usable


def judge_lost_digits(pair: ModelPair, batches: Batches, compared: Comparison) -> Comparison:
    """Return the comparison with the verdicts revised for tensors whose digits cancel."""
    lost = [row for row in compared.different if row.difference.fault is None]
    first = min((row.difference.step for row in lost), default=0)
    # An output that has too few digits at the first step decides the verdict, whatever roundings do.
    if not lost or any(row.difference.step == first and _is_beyond_rounding(row) for row in lost):
        return compared
    moves = perturbations(pair, batches, max(row.difference.step for row in lost))
    rows = tuple(judged_by(row, moves) if row in lost else row for row in compared.rows)
    if any(row.outcome is Outcome.NOISE and math.isfinite(row.limit) for row in rows):
        rows = _without_parted_ties(pair, batches, lost, rows)
    # Only differences that are already small can be the compiler's rounding; a second run costs a
    # compilation.
    small = [
        row for row in rows if row.outcome is Outcome.DIFFERENT and row.difference.relative <= _most(row)
    ]
    if small:
        plain = {
            key_of(row.difference): judged_by(row, moves) for row in _unoptimised(pair, batches, compared)
        }
        rows = tuple(
            _of_the_compiler(row, plain.get(key_of(row.difference))) if row in small else row for row in rows
        )
    return dataclasses.replace(compared, rows=rows)


def _is_result(row: Judged) -> bool:
    return row.difference.kind in (Kind.OUTPUT, Kind.LOSS)


def _is_beyond_rounding(row: Judged) -> bool:
    return _is_result(row) and row.difference.relative > OUTPUTS


def _most(row: Judged) -> float:
    return OUTPUTS if _is_result(row) else NOTHING


def _without_parted_ties(
    pair: ModelPair, batches: Batches, lost: Sequence[Judged], rows: Sequence[Judged]
) -> tuple[Judged, ...]:
    """Judge noise again without the perturbations that part equal numbers.

    At a tie or a kink these move a derivative by any amount, and would excuse one that is wrong there.
    """
    moves = perturbations(pair, batches, max(row.difference.step for row in lost), keeps_ties=True)
    judged = {key_of(row.difference): judged_by(row, moves) for row in lost}
    is_noise = (row.outcome is Outcome.NOISE for row in rows)
    return tuple(
        judged.get(key_of(row.difference), row) if noise else row
        for row, noise in zip(rows, is_noise, strict=True)
    )


class Perturbation(NamedTuple):
    """How far a tensor moves when the results of torch's operations are moved by one unit."""

    relative: float = 0.0
    max_abs: float = 0.0


class TorchRuns(Protocol):
    """The torch half of a pair, which runs or was recorded."""

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide: ...

    def recorded_perturbations(self, keeps_ties: bool) -> Mapping[Key, tuple[float, float]] | None: ...


def perturbations(
    pair: TorchRuns, batches: Batches, steps: int, keeps_ties: bool = False
) -> dict[Key, Perturbation]:
    if (recorded := pair.recorded_perturbations(keeps_ties)) is not None:
        return {key: Perturbation(*moves) for key, moves in recorded.items()}
    from ._sides.torch_float64 import Rounding  # torch, which a trace does without

    farthest: dict[Key, Perturbation] = {}
    for seed in SEEDS:
        reference, moved = pair.reference("float64"), pair.reference("float64")
        moved.rounding = functools.partial(Rounding, seed, keeps_ties)
        for number in range(1, steps + 1):
            # Before every step, so that one step's perturbation is measured and not the drift of several.
            moved.continue_from(reference)
            before = moved.weights(), reference.weights()
            true = reference.step(batches(number))
            perturbed_results = moved.step(batches(number))
            measured = step_differences(perturbed_results, true, number)
            measured += resolved_updates(before, (perturbed_results.weights, true.weights), number, {})
            for d in measured:
                last = farthest.get(key_of(d), Perturbation())
                farthest[key_of(d)] = Perturbation(
                    max(d.relative, last.relative), max(d.max_abs, last.max_abs)
                )
    return farthest


def judged_by(row: Judged, moves: dict[Key, Perturbation]) -> Judged:
    d = row.difference
    moved, far = moves.get(key_of(d), Perturbation())
    # An exact 0 has no digits to compare, so its bound is absolute: as far as rounding moves it in torch.
    if d.magnitude == 0 and d.max_abs <= FACTOR * far and not _is_result(row):
        reason = f"it is exactly 0 in the reference, and roundings in torch move it by {far:.2g}"
        return dataclasses.replace(row, outcome=Outcome.NOISE, limit=math.inf, reason=reason)
    limit = FACTOR * moved
    if _is_result(row):
        limit = min(limit, OUTPUTS)
    if not math.isfinite(moved) or d.relative > limit:
        return row
    reason = f"most digits cancel in it: roundings in torch move it by {moved:.2g}, relatively"
    outcome = Outcome.NOISE if limit > NOTHING else Outcome.SAME
    return dataclasses.replace(row, outcome=outcome, limit=limit, reason=reason)


def _unoptimised(pair: ModelPair, batches: Batches, compared: Comparison) -> tuple[Judged, ...]:
    """Compare again, with Flax's program compiled without optimizations."""
    # XLA also rounds where torch's operations do not: with a fused multiply-add, a * b - c * d is not 0 even
    # if both products are equal. The program without optimizations still contains the port's mistakes.
    reference, findings = pair.reference("float64"), Findings()
    candidate = pair.candidate(reference).unoptimised()
    sides = Sides(reference, candidate, single=functools.partial(pair.reference, "float32"))
    for _ in semantic(sides, batches, compared.steps, findings):
        pass
    return judge(findings.differences, compared.policy, findings.noise)


def _of_the_compiler(row: Judged, plain: Judged | None) -> Judged:
    if plain is None or plain.outcome is Outcome.DIFFERENT:
        return row
    reason = f"rounding of Flax's compiler: without its optimisations it is {plain.difference.relative:.2g}"
    return dataclasses.replace(row, outcome=Outcome.SAME, limit=_most(row), reason=reason)
