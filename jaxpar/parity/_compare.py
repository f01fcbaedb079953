"""compare: run a torch model and a Flax model on one task, measure the differences and judge them.

    torch module ─┐                                                                 ┌─ Judged rows
    Flax module ──┼─► Sides ─► level: steps ─► Difference ... ─► judge ─► Comparison ┼─ Divergence
    inputs, loss ─┘                                                                 └─ Curve

Neither module is changed, and other threads see JAX, Flax and torch unmodified; `_sides/torch_side` names the
few settings that torch has only per process.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._interrupt import between_steps
from ..errors import LeafError
from . import _levels
from ._comparison import Comparison, require_same
from ._determinism import check_flax, forms, generators, number_differences, require_equal, throws
from ._divergence.first import find, layers_agree
from ._divergence.search import Budget
from ._exactness import environment, exact
from ._float32_constants import explain_by_constants
from ._levels import Findings, LevelStep, Sides
from ._model_pair import Inputs, ModelPair, Outputs
from ._precision import explain_by_precision
from ._reach import (
    LARGE_SHAKE,
    NOT_REACHED,
    SHAKE,
    has_gradients,
    layers_without_gradient,
    of_call,
    of_rows,
    some,
    unreached,
)
from ._request import Arrays, Request
from ._sides.candidate import Candidate
from ._sides.flax_mode import parameters
from ._sides.step_data import Layout, Loss, Optimizer
from ._sides.torch_choices import counted
from ._sides.torch_side import torch_parameters
from ._stochastic_arithmetic import judge_lost_digits
from ._two_torchs import errors_in_names_of, in_names_of
from ._weights.mapping import Entries
from ._weights.mapping import Mapping as GuessedMapping
from ._weights.pytree_model import framework_of, name_of
from ._weights.tree import JaxModel, Variables
from .measuring import Kind, Level, Policy, judge, measure

if TYPE_CHECKING:
    import torch

    from ._sides.torch_side import TorchSide

Progress = Callable[[int, int], None]
OnResult = Callable[[Comparison], None]
Callbacks = tuple[Progress | None, OnResult | None]
CALLBACKS = ("progress", "on_result")  # the parameters of `compare` that no Request has


class Stopped(KeyboardInterrupt):
    """Raised on Ctrl-C. `comparison` covers the completed steps; None if no step was completed.

    >>> from jaxpar import parity
    >>> isinstance(parity.Stopped(None), KeyboardInterrupt)
    True
    """

    def __init__(self, comparison: Comparison | None):
        super().__init__("parity.compare was stopped")
        self.comparison = comparison


def compare(
    torch_module: torch.nn.Module | Callable[..., Any],
    flax_module: JaxModel,
    inputs: Inputs = None,
    *,
    torch_inputs: Inputs = None,
    flax_inputs: Inputs = None,
    outputs: Outputs | None = None,
    targets: Arrays = (),
    loss: Loss | Callable[..., Any] | None = None,
    optimizer: Optimizer | Callable[..., Any] | None = None,
    steps: int | None = None,
    replicas: int = 1,
    level: str | Level = Level.SEMANTIC,
    dtype: str = "float32",
    resync: bool = True,
    training: bool | None = None,
    shake: bool | None = None,
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
    search: str | float | None = "full",
    progress: Progress | None = None,
    on_result: OnResult | None = None,
) -> Comparison:
    """Check whether a Flax model equals a torch model: outputs, gradients, state, training.

    Args:
      torch_module: the reference, a module or a function. Runs on the CPU, in torch's own DataParallel for
        `replicas` > 1.
      flax_module: an nnx.Module, a linen.Module, a Keras 3 model on JAX; `(function, params)`, called with
        the params first; a function without parameters; a callable pytree, such as an Equinox module; or a
        second torch module or function, which gets the first one's weights and dropout masks.
      inputs: the arguments of one call, in torch's layout: a single argument, a tuple or list of positional
        arguments, or a dict of keyword arguments, possibly nested; or a function of the step number. None,
        numbers, bools and strings are passed unchanged.
      torch_inputs, flax_inputs: replace `inputs` where the two sides take different arguments; each in its
        own layout.
      outputs: the outputs to compare, by name (`["logits"]`, or `{"[0]": "['logits']"}` from torch's to
        Flax's names), each including everything nested under it. Defaults to all outputs.
      targets: arguments of the losses after the outputs, or a function of the step number.
      loss: a pair (torch's, JAX's), both called with (outputs, *targets). Defaults to a fixed random
        projection of the outputs, which depends on every element.
      optimizer: a pair (parameters -> torch optimizer, optax transformation). For two torch models, this
        and `loss` are two functions of torch, or one for both.
      steps: the number of training steps. By default 2 with an optimizer, whose memory shows in the second
        step, at the levels semantic and trajectory; otherwise 1.
      replicas: the number of replicas; both sides split the batch as DataParallel does.
      level: "semantic", "numeric", "trajectory" or "as it runs".
      dtype: the dtype under test at the levels numeric and trajectory.
      resync: for trajectories: start every step from the reference's state; otherwise both sides run freely.
      training: the mode of both models; defaults to the torch module's. If torch's submodules have modes of
        their own, such as a frozen BatchNorm in evaluation, both models' layers keep theirs.
      shake: whether weights are perturbed on both sides first, so that initial values hide nothing. By
        default, models that are the same are compared again with perturbed weights if a whole layer gets
        no gradient, as one whose outputs are multiplied by 0.
      layout: "same", "channels_last" (moves axis 1 of arrays with three or more axes to the end for
        Flax, but not of outputs with fewer axes than all such inputs), a pair of these for inputs and
        outputs, or a `parity.Layout`.
      mapping: Flax paths for torch names, see `parity.match`. Only needed where the names disagree.
      ignore_torch, ignore_flax: names, including everything nested under them, to leave out: torch tensors
        that the Flax model lacks, and leaves that keep their values.
      weights: "torch" copies torch's weights to Flax; "own" keeps both models' weights and compares them.
      variables: a Linen module's variables, for weights="own" or `ignore_flax`.
      torch_kwargs, flax_kwargs: additional keyword arguments of every call, which may be any objects; for
        Linen the arguments of `apply`: `rngs`, `mutable`, `method`.
      seed: seeds the projection and dropout. torch draws the masks, and both sides use them.
      policy: the bounds; defaults to the level's.
      search: how long to search for where and why models differ: "full", until every difference is found;
        "quick", until the first; a number of seconds; or None, no search.
      progress: called after every step with its number and the total.
      on_result: called with a Comparison as soon as the verdict is reached, and again with each difference
        that the search finds.

    Raises:
      MatchError: a leaf has no counterpart.
      NotDeterministicError: a model returns two different results for the same batch.
      MaskError: a dropout that does not use torch's masks.
      ValueError: arguments contradict each other, or `outputs` contains an unknown name.
      Stopped: on Ctrl-C, with the result up to there.

    No torch counterpart. docs/comparison.md derives the bounds.

    >>> import numpy as np, torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> x = np.ones((2, 3), np.float32)
    >>> comparison = parity.compare(torch.nn.Linear(3, 4), nnx.Linear(3, 4, rngs=nnx.Rngs(0)), x)
    >>> comparison
    <Comparison: semantic, same, 4 tensors>
    """
    # Before any other local variable: the parameters, except the callbacks, are the fields of a Request.
    arguments = {name: value for name, value in locals().items() if name not in CALLBACKS}
    request, findings, callbacks = Request(**arguments), Findings(), (progress, on_result)
    if request.shake:
        return _shaken(request, callbacks, "shake=True", SHAKE)[0]
    compared = run(request, findings, callbacks)
    layers = layers_without_gradient(findings.differences)
    if request.shake is False or request.weights == "own" or not (compared.same and layers):
        return compared
    reason = f"at their own values, for which both are the same, {some(layers)} get no gradient"
    for scale in (SHAKE, LARGE_SHAKE):  # small changes do not wake a relu that hides the whole model
        perturbed, reaches = _shaken(request, callbacks, reason, scale)
        if reaches or not perturbed.same:
            break
    return perturbed


def _shaken(request: Request, callbacks: Callbacks, reason: str, scale: float) -> tuple[Comparison, bool]:
    """Compare with perturbed weights; return also whether any parameter has a gradient then."""
    findings = Findings()
    compared = run(request.shaken(scale), findings, callbacks)
    note = f"all weights were perturbed by {scale:g} times normal numbers on both sides: {reason}"
    return dataclasses.replace(compared, notes=(note, *compared.notes)), has_gradients(findings.differences)


def assert_parity(*args: Any, **kwargs: Any) -> Comparison:
    """Call `compare` and raise unless the models are the same; returns the comparison. For tests.

    Raises: ParityError, as require_same.

    >>> import numpy as np, torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> x = np.ones((2, 3), np.float32)
    >>> parity.assert_parity(torch.nn.LayerNorm(3), nnx.LayerNorm(3, epsilon=1e-5, rngs=nnx.Rngs(0)), x).same
    True
    """
    comparison = compare(*args, **kwargs)
    require_same(comparison)
    return comparison


def run(
    request: Request,
    findings: Findings,
    callbacks: Callbacks = (None, None),
    take: Callable[[LevelStep], None] | None = None,
) -> Comparison:
    """Run the steps, judge the differences, and search for causes; `take` is called with every step."""
    progress, on_result = callbacks
    renamed = functools.partial(in_names_of, request.flax_module)
    worded = None if on_result is None else lambda comparison: on_result(renamed(comparison))
    try:
        with errors_in_names_of(request.flax_module):
            return renamed(_run(request, findings, (progress, worded), take))
    except Stopped as stop:
        if stop.comparison is not None:
            stop.comparison = renamed(stop.comparison)
        raise


def _run(
    request: Request, findings: Findings, callbacks: Callbacks, take: Callable[[LevelStep], None] | None
) -> Comparison:
    progress, on_result = callbacks
    with exact(), between_steps() as check:
        pair = request.pair()
        try:
            inputs = request.model_inputs
            for step in inputs.with_available_gradients(lambda: _steps(pair, request, findings)):
                findings.steps = step.number
                if take:
                    take(step)
                if progress:
                    progress(step.number, request.step_count)
                check()
        except KeyboardInterrupt as stop:
            findings.notes.append(f"stopped by Ctrl-C after step {findings.steps} of {request.step_count}")
            raise Stopped(_result(request, findings) if findings.steps else None) from stop
        compared = _result(request, findings)
        if findings.constants:
            # Lost digits first: `explain_by_constants` explains all the remaining differences or none.
            agree = functools.partial(layers_agree, pair, request.batch)
            compared = judge_lost_digits(pair, request.batch, compared, agree)
            compared = explain_by_constants(pair, request.batch, compared, *findings.constants)
        if request.explains_precision:
            compared = explain_by_precision(pair, request.batch, request.compute_dtype, compared)
        for result in _searched(pair, request, compared, Budget(request.search_seconds, check)):
            if on_result:
                on_result(result)
            compared = result
        return compared


def _searched(
    pair: ModelPair, request: Request, compared: Comparison, budget: Budget
) -> Iterator[Comparison]:
    """Yield the verdict, then the comparison with each divergence that the search finds."""
    yield compared
    # At the level "as it runs" a difference may be rounding alone, which no layer causes. With replicas, a
    # layer runs once per replica, and the replay would see only one of the runs.
    replayable = request.replicas == 1 and request.parsed_level is not Level.AS_IT_RUNS
    if compared.same or compared.divergence or request.search is None or not replayable:
        return
    result = compared
    for divergence in find(pair, request.batch, compared, budget, first_only=request.search == "quick"):
        seconds = time.perf_counter() - request.started
        result = dataclasses.replace(compared, divergence=divergence, seconds=seconds)
        yield result
    if budget.exceeded:
        count = 1 + len(result.divergence.others) if result.divergence else 0
        reason = "Ctrl-C" if budget.interrupted else f"search={budget.seconds:g} seconds"
        note = f"the search for causes was ended by {reason}, with {count} places; there may be more"
        result = dataclasses.replace(result, notes=(*result.notes, note))
        if budget.interrupted:
            raise Stopped(result)
        yield result


def _result(request: Request, findings: Findings) -> Comparison:
    torch_module = request.torch_module
    names = getattr(torch_module, "shown_name", type(torch_module).__name__), name_of(request.flax_module)
    task = request.task
    gaps = unreached(
        request.torch_module, task.training, findings.steps, task.optimizer is not None, findings.differences
    )
    return Comparison(
        level=request.bounds.level,
        rows=judge(findings.differences, request.bounds, findings.noise),
        steps=findings.steps,
        replicas=request.replicas,
        curve=findings.curve,
        environment=environment(request.task, request.compute_dtype),
        notes=(*findings.notes, *(NOT_REACHED + gap for gap in gaps)),
        seconds=time.perf_counter() - request.started,
        policy=request.bounds,
        subject=f"{names[0]} in torch against {names[1]} in {framework_of(request.flax_module)}",
    )


def _steps(pair: ModelPair, request: Request, findings: Findings) -> Iterator[LevelStep]:
    """Run the level's steps; `findings` is complete up to each step that is yielded."""
    level = request.parsed_level
    sides = pair.sides(level, request.dtype)
    if level is Level.SEMANTIC and sides.reference.constants and sides.candidate.constants:
        findings.constants = sides.reference.constants, sides.candidate.constants
    if pair.weights == "own":
        findings.differences = measure(sides.candidate.weights(), sides.reference.weights(), Kind.WEIGHT, 0)
    for step in _loop(level, request.resync)(sides, request.batch, request.step_count, findings):
        findings.add_rows(step)
        # Only the first step starts from a state that new sides have as well, so only it can be repeated.
        if step.number == 1:
            _check_determinism(pair, sides, request, step, findings)
            # `match`'s notes on its guesses belong in the report, because a verdict depends on the mapping.
            findings.notes += [*pair.links.left_out(), *_guesses(request.mapping), *_notes(sides, findings)]
            findings.notes += [*request.model_inputs.notes(), *_lifted(sides)]
            if request.task.own_modes:
                findings.notes.append(
                    "torch's layers have modes of their own, so both sides' layers keep theirs"
                )
            torch_module, batch = sides.reference.module, step.batch
            gaps = [*of_call(batch.torch_call, "torch", torch_parameters(torch_module, batch.torch_call))]
            gaps += of_call(batch.flax_call, "JAX", parameters(request.flax_module, batch.flax_call))
            findings.notes += [NOT_REACHED + gap for gap in gaps]
        yield step
    gaps = [*sides.candidate.gaps(request.task.training), *of_rows(findings.rows)]
    findings.notes += [NOT_REACHED + gap for gap in gaps]


def _notes(sides: Sides[TorchSide], findings: Findings) -> Iterator[str]:
    """Yield the candidate's notes but for those that torch's code has, too."""
    return (note.replace("torch's", "Flax's") for note in sides.candidate.notes if note not in findings.notes)


def _lifted(sides: Sides[TorchSide]) -> Iterator[str]:
    both = [side.constants for side in (sides.reference, sides.candidate) if side.constants]
    if casts := [cast for constants in both for cast in constants.casts]:
        yield f"{NOT_REACHED}roundings to {some(casts)}, which this level computes in float64"


def _guesses(mapping: Entries | None) -> list[str]:
    if not isinstance(mapping, GuessedMapping) or not mapping.reasons:
        return []
    untried = f"{len(mapping.reasons)} of its {len(mapping)} entries are guesses that no example has tried"
    return [f"mapping: {note}" for note in mapping.notes or (untried,)]


def _loop(level: Level, resync: bool) -> Callable[..., Iterator[LevelStep]]:
    if level is Level.TRAJECTORY:
        return _levels.resynchronised if resync else _levels.free
    loops = {Level.SEMANTIC: _levels.semantic, Level.AS_IT_RUNS: _levels.as_it_runs}
    return loops.get(level, _levels.numeric)


def _start(pair: ModelPair, sides: Sides[TorchSide], request: Request) -> tuple[TorchSide, Candidate]:
    reference = pair.reference(sides.reference.dtype)
    candidate = pair.candidate(reference)
    if request.parsed_level is Level.TRAJECTORY and request.resync:
        candidate.load(reference.weights(), reference.state())
    return reference, candidate


def _check_determinism(
    pair: ModelPair, sides: Sides[TorchSide], request: Request, first: LevelStep, findings: Findings
) -> None:
    """Run the first batch again and require identical bits; counts the elements at a kink in the same run."""
    torch_side, flax_side = _start(pair, sides, request)
    before = generators()
    again = torch_side.step(first.batch, counted(findings.notes, torch_side.module))
    findings.notes += throws(torch_side.drawn, before)
    require_equal("the torch module", first.reference, again)
    candidate = first.candidate
    if not again.outputs and not candidate.outputs and not candidate.loss:
        raise LeafError(
            "parity.compare: neither module returned an array, so there is nothing to compare. Return what "
            "they compute, or give loss=."
        )
    returned = torch_side.returned
    del torch_side, again  # two copies of both sides of a large model may not fit into memory
    masks = first.reference.masks
    check_flax(candidate, flax_side, first.batch, masks)
    findings.notes += forms(returned, flax_side.returned)
    findings.differences += number_differences(returned.numbers, flax_side.returned.numbers)
