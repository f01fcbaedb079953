"""compare: a torch model and a Flax model do the same task, and what both show is measured and judged.

    torch module ─┐                                                                 ┌─ Judged rows
    Flax module ──┼─► Sides ─► level: steps ─► Difference ... ─► judge ─► Comparison ┼─ Divergence
    inputs, loss ─┘                                                                 └─ Curve

torch has nothing like it. Neither module is changed, and while they are compared other threads see JAX, Flax
and torch as they are; what torch has only once for a process is named where it is used (`_sides/torch_side`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LeafError, MaskError, NotDeterministicError
from . import _levels
from ._comparison import Comparison, require_same
from ._ctrl_c import between_steps
from ._divergence import find
from ._exactness import environment, exact
from ._float32_constants import explain_by_constants
from ._levels import Findings, LevelStep, Sides
from ._model_inputs import Inputs, Outputs
from ._model_pair import ModelPair
from ._request import Arrays, Request
from ._sides.flax_side import FlaxSide
from ._sides.outputs import Returned
from ._sides.step_data import Layout, Loss, Observation, Optimizer
from ._sides.torch_kinks import counted
from ._stochastic_arithmetic import judge_lost_digits
from ._tensors import widened
from ._weights.mapping import Entries
from ._weights.tree import FlaxModule, Variables
from .measuring import Kind, Level, Policy, judge, measure

if TYPE_CHECKING:
    import torch

    from ._sides.torch_side import TorchSide

Progress = Callable[[int, int], None]


class Stopped(KeyboardInterrupt):
    """Ctrl-C: `comparison` has the steps that were completed; None if there was none."""

    def __init__(self, comparison: Comparison | None):
        super().__init__("parity.compare was stopped")
        self.comparison = comparison


def compare(
    torch_module: torch.nn.Module,
    flax_module: FlaxModule,
    inputs: Inputs = None,
    *,
    torch_inputs: Inputs = None,
    flax_inputs: Inputs = None,
    outputs: Outputs | None = None,
    targets: Arrays = (),
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    steps: int = 1,
    replicas: int = 1,
    level: str | Level = Level.SEMANTIC,
    dtype: str = "float32",
    resync: bool = True,
    training: bool | None = None,
    layout: str | tuple[str, str] | Layout = "same",
    mapping: Entries | None = None,
    ignore_torch: Sequence[str] = (),
    ignore_flax: Sequence[str] = (),
    weights: str = "torch",
    variables: Variables | None = None,
    torch_kwargs: Mapping[str, Any] | None = None,
    flax_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Whether a Flax model is the same as a torch model: outputs, gradients, state, training.

    Args:
      torch_module: the reference. It works on the CPU, in torch's own DataParallel for `replicas` > 1.
      flax_module: an nnx.Module or a linen.Module.
      inputs: of one call, in torch's layout: one argument, a tuple or list of them, or a dict of keyword
        arguments. Dicts, lists and tuples may be inside, and None, numbers, flags and text are passed as
        they are. A function of the step gives every step its own.
      torch_inputs, flax_inputs: instead, where the two sides take different things; each in its own layout.
      outputs: which are compared, by name (`["logits"]`, or `{"[0]": "['logits']"}`: torch's with Flax's),
        each with all below it; all if left out. The comparison's notes list the others.
      targets: what the losses take after the outputs; likewise.
      loss: (torch's, JAX's), both called with (outputs, *targets). If left out, a fixed random
        projection of the outputs, in which every element counts.
      optimizer: (parameters -> torch optimizer, optax transformation).
      steps: of training. More than one needs an optimizer.
      replicas: N; the batch is split as DataParallel splits it, on both sides.
      level: "semantic", "numeric", "trajectory" or "as it runs".
      dtype: at the levels numeric and trajectory, the type that is asked about.
      resync: trajectory: every step starts from the reference; else both run freely, and a curve with
        an envelope says how far they went.
      training: the mode of both models; the torch module's own if left out.
      layout: "same", "channels_last" (axis 1 of arrays with three axes or more goes to the end for
        Flax), a pair of these for inputs and outputs, or a `parity.Layout`.
      mapping: which path is which; see `parity.match`. Names that agree need none.
      ignore_torch, ignore_flax: lists of names, with all below them, that are left out: torch tensors that
        the Flax model does without, and leaves that keep their values. The comparison's notes list them.
      weights: "torch": Flax gets torch's. "own": each has its own, and they are compared.
      variables: of a Linen module, with weights="own" or `ignore_flax`.
      torch_kwargs, flax_kwargs: more keyword arguments of every call, which may be any objects; for Linen
        those of `apply`: `rngs`, `mutable`, `method`.
      seed: of the projection and of dropout. Masks are drawn by torch and used by both.
      policy: the bounds, if not those of the level.
      progress: called after every step with its number and the number of all.

    Raises:
      MatchError: leaves without a counterpart.
      NotDeterministicError: a model gives two results for the same batch.
      MaskError: dropout that torch's masks do not reach.
      ValueError: arguments that contradict each other, or a name in `outputs` that is not there.
      Stopped: Ctrl-C; a KeyboardInterrupt with what was completed.

    No torch counterpart. The bounds are those of docs/comparison.md.
    """
    request = Request(
        torch_module=torch_module,
        flax_module=flax_module,
        inputs=inputs,
        torch_inputs=torch_inputs,
        flax_inputs=flax_inputs,
        outputs=outputs,
        targets=targets,
        loss=loss,
        optimizer=optimizer,
        steps=steps,
        replicas=replicas,
        level=level,
        dtype=dtype,
        resync=resync,
        training=training,
        layout=layout,
        mapping=mapping,
        ignore_torch=ignore_torch,
        ignore_flax=ignore_flax,
        weights=weights,
        variables=variables,
        torch_kwargs=torch_kwargs,
        flax_kwargs=flax_kwargs,
        seed=seed,
        policy=policy,
    )
    return run(request, Findings(), progress)


def assert_parity(*args: Any, **kwargs: Any) -> Comparison:
    """`compare` for tests, with its arguments: passes if both are the same, and returns the comparison.

    Raises:
      ParityError: they are not; the message has the table, the first divergent layer and the likely cause.
    """
    comparison = compare(*args, **kwargs)
    require_same(comparison)
    return comparison


def run(
    request: Request,
    findings: Findings,
    progress: Progress | None = None,
    take: Callable[[LevelStep], None] | None = None,
) -> Comparison:
    """Takes the steps and judges what they show.

    Args:
      findings: empty; what was measured is in it afterwards.
      take: called with every step.
    """
    with exact(), between_steps() as check:
        pair = request.pair()
        try:
            for step in _steps(pair, request, findings):
                findings.steps = step.number
                if take:
                    take(step)
                if progress:
                    progress(step.number, request.steps)
                check()
        except KeyboardInterrupt as stop:
            findings.notes.append(f"stopped by Ctrl-C after step {findings.steps} of {request.steps}")
            raise Stopped(_result(request, findings) if findings.steps else None) from stop
        compared = _result(request, findings)
        if request.parsed_level is Level.SEMANTIC:
            compared = judge_lost_digits(pair, request.batch, compared)
            compared = explain_by_constants(pair, request.batch, compared)
        # As they run, models may differ by rounding alone, which has no place.
        if compared.same or request.replicas > 1 or request.parsed_level is Level.AS_IT_RUNS:
            return compared
        return dataclasses.replace(compared, divergence=find(pair, request.batch, compared))


def _result(request: Request, findings: Findings) -> Comparison:
    names = type(request.torch_module).__name__, type(request.flax_module).__name__
    return Comparison(
        level=request.bounds.level,
        rows=judge(findings.differences, request.bounds, findings.noise),
        steps=findings.steps,
        replicas=request.replicas,
        curve=findings.curve,
        environment=environment(request.task, request.compute_dtype),
        notes=tuple(findings.notes),
        seconds=time.perf_counter() - request.started,
        policy=request.bounds,
        subject=f"{names[0]} in torch against {names[1]} in Flax",
    )


def _steps(pair: ModelPair, request: Request, findings: Findings) -> Iterator[LevelStep]:
    """Runs the level; what it finds is in `findings` after each step."""
    level = request.parsed_level
    sides = pair.sides(level, request.dtype)
    if pair.weights == "own":
        weights = sides.candidate.weights(), sides.reference.weights()
        findings.differences += measure(*weights, Kind.WEIGHT, 0)
    for step in _loop(level, request.resync)(sides, request.batch, request.steps, findings):
        if step.number == 1:
            _check_determinism(pair, sides, request, step, findings)
            findings.notes += [*pair.links.left_out(), *_said(request.mapping), *sides.candidate.net.notes]
            findings.notes += request.model_inputs.notes()
        yield step


def _loop(level: Level, resync: bool) -> Callable[..., Iterator[LevelStep]]:
    """The steps of a level."""
    if level is Level.TRAJECTORY:
        return _levels.resynchronised if resync else _levels.free
    loops = {Level.SEMANTIC: _levels.semantic, Level.AS_IT_RUNS: _levels.as_it_runs}
    return loops.get(level, _levels.numeric)


def _start(pair: ModelPair, sides: Sides[TorchSide], request: Request) -> tuple[TorchSide, FlaxSide]:
    """Both sides as they were before the first step."""
    reference = pair.reference(sides.reference.dtype)
    candidate = pair.candidate(reference)
    if request.parsed_level is Level.TRAJECTORY and request.resync:
        candidate.load(reference.weights(), reference.state())
    return reference, candidate


def _said(mapping: Entries | None) -> list[str]:
    """What `match` said of its guesses: a verdict is worth no more than the mapping."""
    return [f"mapping: {note}" for note in getattr(mapping, "notes", ())]


def _check_determinism(
    pair: ModelPair, sides: Sides[TorchSide], request: Request, first: LevelStep, findings: Findings
) -> None:
    """The same batch twice must give the same bits, or every verdict is an accident.

    On the way the elements at a kink are counted.
    """
    torch_side, flax_side = _start(pair, sides, request)
    again = torch_side.step(first.batch, counted(findings.notes))
    _require_equal("the torch module", first.reference, again)
    candidate = first.candidate
    if not again.outputs and not candidate.outputs and not candidate.loss:
        raise LeafError(
            "parity.compare: neither module returned an array, so there is nothing to compare. Return what "
            "they compute, or give loss=."
        )
    returned = torch_side.returned
    del torch_side, again  # of a large model there is no room for both sides twice
    masks = first.reference.masks
    _require_equal("the Flax module", candidate, flax_side.step(first.batch, masks, keep=False))
    if flax_side.draws(first.batch):
        other = flax_side.step(first.batch, masks, keep=False, reseeded=True)
        _require_own_draws_without_effect(candidate, other)
    findings.notes += _forms(returned, flax_side.returned)


def _forms(torch_returned: Returned, flax_returned: Returned) -> list[str]:
    """A sentence if the only array comes out of other containers, and one on outputs that were not chosen."""
    notes = []
    if (
        torch_returned.sole is not None
        and flax_returned.sole is not None
        and torch_returned.sole != flax_returned.sole
    ):
        locations = [
            f"as outputs{path}" if path else "alone" for path in (torch_returned.sole, flax_returned.sole)
        ]
        notes.append(
            f"torch returns its only output {locations[0]} and Flax {locations[1]}; "
            "they are compared with each other"
        )
    for name, side in (("torch", torch_returned), ("Flax", flax_returned)):
        if side.left_out:
            notes.append(f"outputs of {name} that were not compared: {', '.join(side.left_out)}")
    return notes


def _require_own_draws_without_effect(first: Observation, other: Observation) -> None:
    """Dropout's masks are torch's; what Flax draws beside them would be a difference that means nothing."""
    for part in ("outputs", "loss", "state", "gradients"):
        for name, x in getattr(first, part).items():
            if x.tobytes() != getattr(other, part)[name].tobytes():
                raise MaskError(
                    f"parity.compare: {f'{part} {name}'.strip()} of the Flax module depends on random "
                    "numbers that it draws itself, outside of Dropout layers (make_rng, a key, an attention "
                    "of its own), where torch's masks do not reach. Compare with training=False, set that "
                    "rate to 0, or drop with a Dropout layer."
                )


def _require_equal(what: str, first: Observation, second: Observation) -> None:
    for part in ("outputs", "state", "gradients"):
        for name, x in getattr(first, part).items():
            y = getattr(second, part)[name]
            if x.tobytes() != y.tobytes():
                spread = np.nanmax(np.abs(widened(x) - widened(y)))
                label = f"{part} {name}".strip()
                raise NotDeterministicError(
                    f"parity.compare: {what} gives two results for the same batch, {label}: {spread:.2g} "
                    "apart. Compare in evaluation mode, or take out what draws random numbers (masks of "
                    "torch's dropout are passed on by themselves)."
                )
