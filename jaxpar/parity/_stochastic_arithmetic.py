"""Loosen the bounds of tensors whose digits cancel, as measured by stochastic arithmetic in torch.

In the mean of what a norm has just centred, or in a gradient through two norms, most digits cancel. torch
shows how many: it runs again with each result moved at random by one unit of float64, as in CADNA.
A tensor that moves farther than rounding gets a bound in proportion; one that moves too far gets no verdict.
Tensors that still differ are judged again from Flax's program: compiled without optimizations, with torch's
weights before each step, because digits that cancel in one step are lost to the next; and on inputs and
weights that are one unit off. Outputs that lose more digits than a bound allows are the same if every layer
is, given torch's arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ._levels import Batches, Findings, Sides, resolved_updates, semantic, step_differences
from .measuring import Judged, Key, Kind, Outcome, judge, key_of, noise

if TYPE_CHECKING:
    from ._comparison import Comparison
    from ._model_pair import ModelPair
    from ._sides.candidate import Candidate
    from ._sides.constants import Constants
    from ._sides.torch_side import TorchSide

SEEDS = (1, 2, 3)
FACTOR = 16.0  # times the effect of perturbing torch is rounding: Flax rounds at different operations
OWN = 2.0  # times the effect of inputs that are one unit off is Flax's rounding; more would hide mistakes
CHAOS = 1e3  # times the effect of one such run may be the effect of another, where the digits cancel
NOTHING = 1e-3  # the highest bound of a verdict; a tensor that would need a higher one is noise
TINY = 2.0**-44  # times the largest gradient of a step is the rounding of one that is 0
OUTPUTS = 1e-6  # the highest bound of an output or a loss: with fewer digits a model is not usable


def judge_lost_digits(
    pair: ModelPair, batches: Batches, compared: Comparison, layers_agree: Callable[[int], bool]
) -> Comparison:
    """Return the comparison with the verdicts revised for tensors whose digits cancel.

    `layers_agree` replays a step: whether each layer is the same, and so is the code between them.
    """
    lost = [row for row in compared.different if row.difference.fault is None]
    if not lost:
        return compared
    first = min(row.difference.step for row in lost)
    beyond = [row for row in lost if row.difference.step == first and _is_beyond_rounding(row)]
    # Such an output decides the verdict, unless torch loses as many digits.
    if beyond and not _are_chaotic(pair, batches, first, beyond):
        return compared
    moves = perturbations(pair, batches, max(row.difference.step for row in lost))
    rows = tuple(judged_by(row, moves) if row in lost else row for row in compared.rows)
    if any(map(_depends_on_ties, rows)):
        rows = _without_parted_ties(pair, batches, lost, rows)
    if beyond and layers_agree(first):
        rows = tuple(_of_layers(row, moves) if row in beyond else row for row in rows)
    # Only differences that are already small can be rounding in Flax or of its compiler; later steps may
    # have them from the first. A second run costs a compilation.
    unoptimised = functools.cache(lambda: pair.candidate(pair.reference("float64")).unoptimised())
    for judge_again in (functools.partial(_unoptimised, moves=moves), _nudged):
        small = [
            row
            for row in rows
            if row.outcome is Outcome.DIFFERENT
            and (row.difference.relative <= _most(row) or row.difference.step > first)
        ]
        if small:
            again = judge_again(pair, batches, compared, unoptimised())
            rows = tuple(again(row) if row in small else row for row in rows)
    return dataclasses.replace(compared, rows=_of_rounding_alone(pair, batches, rows))


def _of_rounding_alone(pair: ModelPair, batches: Batches, rows: tuple[Judged, ...]) -> tuple[Judged, ...]:
    """Judge gradients that are 0 but for rounding in a later step, such as one whose inputs are equal rows.

    On both sides they are at most `TINY` of the step's largest gradient, and torch's float32 has others:
    the definition of noise, with a bound, because at a tie float32 has another derivative.
    """
    gradients = [row for row in rows if row.difference.kind is Kind.GRADIENT]
    largest: dict[int, float] = {}
    for d in (row.difference for row in gradients if row.difference.fault is None):
        largest[d.step] = max(largest.get(d.step, 0.0), d.magnitude)
    tiny = [
        row
        for row in gradients
        if row.outcome is Outcome.DIFFERENT
        and row.difference.magnitude + row.difference.max_abs <= TINY * largest.get(row.difference.step, 0)
    ]
    if not tiny or pair.recorded_perturbations(keeps_ties=False) is not None:
        return rows
    reference, single = pair.reference("float64"), pair.reference("float32")
    reasons: dict[tuple[int, str], str] = {}
    for number in range(1, max(row.difference.step for row in tiny) + 1):
        single.continue_from(reference, with_optimizer=False)
        double = reference.step(batches(number)).gradients
        noisy = noise(double, single.step(batches(number)).gradients)
        reasons |= {(number, name): reason for name, reason in noisy.items()}

    def judged(row: Judged) -> Judged:
        reason = reasons.get((row.difference.step, row.difference.name))
        if row not in tiny or reason is None:
            return row
        return dataclasses.replace(row, outcome=Outcome.NOISE, limit=math.inf, reason=reason)

    return tuple(map(judged, rows))


def _are_chaotic(pair: ModelPair, batches: Batches, step: int, rows: Sequence[Judged]) -> bool:
    """Whether roundings may move these results of torch so far; at the first step, from a forward pass."""
    if step > 1:
        return True
    if (recorded := pair.recorded_perturbations(keeps_ties=False)) is not None:
        moves = {key: relative for key, (relative, _) in recorded.items()}
    else:
        moves = _forward_moves(pair, batches)
    return all(row.difference.relative <= CHAOS * moves.get(key_of(row.difference), 0.0) for row in rows)


def _forward_moves(pair: ModelPair, batches: Batches) -> dict[Key, float]:
    from ._sides.torch_float64 import Rounding  # torch, which a trace does without

    plain, moved = pair.reference("float64"), pair.reference("float64")
    moved.rounding = functools.partial(Rounding, SEEDS[0])
    results, nudged_results = (side.step(batches(1), forward_only=True) for side in (plain, moved))
    return {key_of(d): d.relative for d in step_differences(nudged_results, results, 1)}


def _of_layers(row: Judged, moves: dict[Key, Perturbation]) -> Judged:
    moved = moves.get(key_of(row.difference), Perturbation()).relative
    if row.difference.relative > FACTOR * moved:
        return row
    cause = f"roundings in torch move it by {moved:.2g}, relatively"
    reason = f"{cause}, and on torch's inputs every layer is the same"
    return dataclasses.replace(row, outcome=Outcome.SAME, limit=FACTOR * moved, reason=reason)


def _is_result(row: Judged) -> bool:
    return row.difference.kind in (Kind.OUTPUT, Kind.LOSS)


def _is_beyond_rounding(row: Judged) -> bool:
    return _is_result(row) and row.difference.relative > OUTPUTS


def _most(row: Judged) -> float:
    return OUTPUTS if _is_result(row) else NOTHING


def _without_parted_ties(
    pair: ModelPair, batches: Batches, lost: Sequence[Judged], rows: Sequence[Judged]
) -> tuple[Judged, ...]:
    """Judge noise and differences again without the perturbations that part equal numbers.

    At a tie or a kink these move a derivative by any amount, and would excuse one that is wrong there. Behind
    a norm of two equal rows they move it less: once the rows are parted, their variance is not 0.
    """
    moves = perturbations(pair, batches, max(row.difference.step for row in lost), keeps_ties=True)
    judged = {key_of(row.difference): judged_by(row, moves) for row in lost}
    undecided = (Outcome.NOISE, Outcome.DIFFERENT)
    return tuple(judged.get(key_of(row.difference), row) if row.outcome in undecided else row for row in rows)


def _depends_on_ties(row: Judged) -> bool:
    exact = row.difference.magnitude == 0
    return (
        exact if row.outcome is Outcome.DIFFERENT else row.outcome is Outcome.NOISE and row.limit < math.inf
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


Again = Callable[[Judged], Judged]


def _nudged(pair: ModelPair, batches: Batches, compared: Comparison, unoptimised: Candidate) -> Again:
    """Measure how far each side moves if inputs and weights are one unit off; equal numbers move alike.

    A formula that cancels, such as a variance as a difference of means, loses digits that torch keeps.
    """
    if pair.weights == "own" or pair.recorded_perturbations(keeps_ties=False) is not None:
        return lambda row: row  # weights cannot be moved alike, or torch cannot run
    import torch

    moves: dict[Key, list[float]] = {}
    for seed in SEEDS:
        nudge = functools.partial(_off_by_one, key=np.uint64(seed))
        reference, moved = pair.reference("float64"), pair.reference("float64")
        for tensor in moved.module.state_dict().values():
            tensor.copy_(torch.from_numpy(nudge(tensor.numpy())))
        candidate, moved_candidate = unoptimised.restarted(), unoptimised.restarted()
        candidate.load(reference.weights(), reference.state())
        moved_candidate.load(moved.weights(), moved.state())
        for number in range(1, compared.steps + 1):
            batch = batches(number)
            off = dataclasses.replace(
                batch, torch_call=batch.torch_call.map(nudge), flax_call=batch.flax_call.map(nudge)
            )
            plain, other = reference.step(batch), moved.step(off)
            flax = moved_candidate.step(off, plain.masks), candidate.step(batch, plain.masks)
            for side, results in enumerate(((other, plain), flax)):
                for d in step_differences(*results, number):
                    farthest = moves.setdefault(key_of(d), [0.0, 0.0])
                    farthest[side] = max(farthest[side], d.relative)

    def judged(row: Judged) -> Judged:
        of_torch, of_flax = moves.get(key_of(row.difference), (0.0, 0.0))
        # Where torch moves as far, the function is to blame and not a formula, and torch's roundings decide.
        if not row.difference.relative <= OWN * of_flax < math.inf or of_flax < FACTOR * of_torch:
            return row
        reason = (
            f"rounding in Flax: inputs and weights that are one unit off move it by {of_flax:.2g}, "
            f"and by {of_torch:.2g} in torch"
        )
        return dataclasses.replace(row, outcome=Outcome.SAME, limit=_most(row), reason=reason)

    return judged


def _off_by_one(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """Move numbers by at most one unit of float64, but not those with few digits, such as a clip's bounds."""
    if x.dtype.kind != "f":
        return x
    from ._sides.torch_float64 import draws_by_value

    wide = np.asarray(x, np.float64, order="C")  # `ascontiguousarray` gives a scalar an axis
    with np.errstate(over="ignore"):
        exact = wide.astype(np.float16).astype(np.float64) == wide
    return np.where(exact, wide, wide * (1 + 2.0**-52 * np.sign(draws_by_value(wide, key))))


def _unoptimised(
    pair: ModelPair,
    batches: Batches,
    compared: Comparison,
    unoptimised: Candidate,
    moves: dict[Key, Perturbation],
) -> Again:
    """Compare again, each step from torch's weights, with Flax's program compiled without optimizations."""
    # XLA also rounds where torch's operations do not: with a fused multiply-add, a * b - c * d is not 0 even
    # if both products are equal. The program without optimizations still contains the port's mistakes.
    reference, findings = pair.reference("float64"), Findings()
    sides = Sides(reference, unoptimised, single=functools.partial(pair.reference, "float32"))
    for step in semantic(sides, batches, compared.steps, findings):
        unoptimised.load(step.reference.weights, step.reference.state)
    rows = judge(findings.differences, compared.policy, findings.noise)
    plain = {key_of(row.difference): judged_by(row, moves) for row in rows}
    return lambda row: _of_the_compiler(row, plain.get(key_of(row.difference)))


def _of_the_compiler(row: Judged, plain: Judged | None) -> Judged:
    if plain is None or plain.outcome is Outcome.DIFFERENT:
        return row
    reason = (
        f"rounding of Flax's compiler or of earlier steps made {row.difference.relative:.2g} of it: this is "
        "without its optimisations and from torch's weights"
    )
    return dataclasses.replace(plain, reason=reason)
