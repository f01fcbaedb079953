"""against: judge a JAX model by a trace of torch, in the loop of `compare`."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .._comparison import Comparison
from .._determinism import check_flax, forms, number_differences
from .._exactness import exact
from .._float32_constants import explained_by_moves, flax_moved_by_constants, is_explained
from .._levels import Findings, semantic
from .._model_pair import Inputs, ModelInputs, Outputs, linked, output_pairs
from .._reach import NOT_REACHED, of_call, of_rows, unreached
from .._sides.flax_mode import parameters
from .._sides.outputs import Outputs as ModelOutputs
from .._sides.step_data import Batch, Layout, Task
from .._stochastic_arithmetic import judge_lost_digits
from .._two_torchs import errors_in_names_of, in_names_of
from .._weights.mapping import Entries
from .._weights.pytree_model import as_flax, framework_of, name_of
from .._weights.tree import JaxModel, Variables
from ..measuring import Level, Policy, judge
from .places import find
from .reading import TraceFile, read
from .recorded_pair import TracePair, by_leaf

if TYPE_CHECKING:
    import jax
    import optax


def against(
    trace: str | os.PathLike[str],
    flax_module: JaxModel,
    *,
    flax_inputs: Inputs = None,
    outputs: Outputs | None = None,
    loss: Callable[..., jax.Array] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    layout: str | tuple[str, str] | Layout = "same",
    mapping: Entries | None = None,
    ignore_torch: Sequence[str] = (),
    ignore_flax: Sequence[str] = (),
    variables: Variables | None = None,
    flax_kwargs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    search: bool = True,
) -> Comparison:
    """Check a JAX model against a trace that the recorder wrote. Does not need torch.

    Args:
      trace: the folder that `jaxpar.parity.recorder` wrote.
      flax_module, layout, mapping, ignore_torch, ignore_flax, variables, flax_kwargs, policy: as for
        `compare`.
      flax_inputs: replaces the recorded inputs where the JAX model takes different arguments.
      outputs: the names of the outputs that were recorded, or torch's with Flax's.
      loss, optimizer: JAX's halves of compare's pairs, if the trace was recorded with torch's.
      search: whether the first place and its cause are searched if the models differ.

    Raises:
      FileError: the trace is missing, damaged or has a different version; no part is executed.
      MatchError: the model's leaves are not the trace's.
      ValueError: the trace has a loss, an optimizer or outputs and the call does not, or the reverse.

    >>> import tempfile
    >>> import numpy as np, torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> from jaxpar.parity.recorder import record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = record(folder, torch.nn.Linear(3, 4), np.ones((2, 3)))
    ...     parity.against(trace, nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    <Comparison: semantic, same, 4 tensors>
    """
    started, recorded = time.perf_counter(), read(trace)
    options = {"flax_inputs": flax_inputs, "outputs": outputs, "loss": loss, "optimizer": optimizer,
        "layout": layout, "mapping": mapping, "ignore_torch": ignore_torch, "ignore_flax": ignore_flax,
        "variables": variables, "flax_kwargs": flax_kwargs}  # fmt: skip
    module = as_flax(flax_module)
    with exact(), errors_in_names_of(module):
        pair, batches, inputs = paired(recorded, flax_module, **options)
        bounds = policy or Policy(Level.SEMANTIC)
        compared, side_notes = _judged(pair, batches, bounds)
        compared = dataclasses.replace(
            compared,
            replicas=1,
            environment=recorded.environment(pair.task),
            notes=(*map(str, recorded.manifest["notes"]), *side_notes, *inputs.notes(), *compared.notes),
            policy=bounds,
            subject=f"{recorded.manifest['subject']} in a trace of torch against {name_of(module)} in "
            f"{framework_of(module)}",
        )
        # Chaos is excused where torch runs: a trace need not hold every layer's arrays.
        compared = judge_lost_digits(pair, batches, compared, layers_agree=lambda step: False)
        compared = _by_constants(pair, batches, compared)
        if search and not compared.same:
            compared = dataclasses.replace(compared, divergence=find(pair, batches, compared))
    return in_names_of(module, dataclasses.replace(compared, seconds=time.perf_counter() - started))


def paired(
    recorded: TraceFile, flax_module: JaxModel, **options: Any
) -> tuple[TracePair, Callable[[int], Batch], ModelInputs]:
    """Return the pair of a trace and a model, its batches and inputs; `options` as `against` takes them."""
    module, variables = as_flax(flax_module), options.get("variables")
    loss, optimizer, outputs = (options.get(name) for name in ("loss", "optimizer", "outputs"))
    task = _task(recorded, loss, optimizer, outputs, Layout.parse(options.get("layout", "same")))
    inputs = ModelInputs(
        module,
        task,
        (recorded.inputs, None, options.get("flax_inputs")),
        (None, options.get("flax_kwargs")),
        function="against",
    )
    links, variables = linked(
        module,
        recorded.source(),
        inputs.batch(1).flax_call,
        variables,
        task,
        "parity.against",
        mapping=options.get("mapping"),
        ignore_torch=options.get("ignore_torch", ()),
        ignore_flax=options.get("ignore_flax", ()),
    )

    pair = TracePair(recorded, module, variables, task, links, "torch")
    return pair, recorded.with_targets(inputs.batch), inputs


def _task(recorded: TraceFile, loss: Any, optimizer: Any, outputs: Outputs | None, layout: Layout) -> Task:
    pairs, names = output_pairs(outputs), recorded.manifest.get("outputs")
    task = recorded.task("against", loss, optimizer, layout, pairs)
    if [*(pairs or ())] != [*(names or ())]:
        raise ValueError(
            f"parity.against: {recorded.folder} was recorded with outputs={names}, and outputs={outputs!r} "
            "are to be compared; record the same names."
        )
    return task


def _judged(pair: TracePair, batches: Callable[[int], Batch], bounds: Policy) -> tuple[Comparison, list[str]]:
    recorded, findings, notes = pair.recorded, Findings(), list[str]()
    sides = pair.sides(Level.SEMANTIC, "float64")
    for step in semantic(sides, batches, recorded.steps, findings):
        findings.add_rows(step)
        if step.number == 1:
            check_flax(
                step.candidate, pair.candidate(pair.reference("float64")), step.batch, step.reference.masks
            )
            returned = sides.candidate.returned
            manifest = recorded.manifest
            torchs = ModelOutputs({}, manifest.get("sole"), tuple(map(str, manifest["left_out"])))
            notes += [*pair.links.left_out(), *sides.candidate.notes, *forms(torchs, returned)]
            findings.differences += number_differences(manifest["numbers"], returned.numbers)
    task = pair.task
    no_module: Any = SimpleNamespace(named_modules=lambda: ())  # its gaps are among the trace's notes
    gaps = [*unreached(no_module, True, recorded.steps, task.optimizer is not None, findings.differences)]
    call = batches(1).flax_call
    gaps += of_call(call, "JAX", parameters(pair.flax_module, call))
    gaps += [*sides.candidate.gaps(task.training), *of_rows(findings.rows)]
    notes += [NOT_REACHED + gap for gap in gaps]
    rows = judge(findings.differences, bounds, findings.noise)
    return Comparison(level=Level.SEMANTIC, rows=rows, steps=recorded.steps), notes


def _by_constants(pair: TracePair, batches: Callable[[int], Batch], compared: Comparison) -> Comparison:
    """Explain differences by what rounding constants does, of torch as recorded and of Flax in runs."""
    different = compared.different
    if not different or any(row.difference.fault is not None for row in different):
        return compared
    steps = max(row.difference.step for row in different)
    moves, names = flax_moved_by_constants(pair, batches, steps)
    moved = by_leaf(pair.recorded.moves(pair.recorded.manifest["constants"]), pair.links)
    for key, (_, far) in moved.items():
        moves[key] = moves.get(key, 0.0) + far
    torchs = [f"torch's {name}" for name in pair.recorded.below("constants/")]
    guilty = (*torchs, *names)
    return explained_by_moves(compared, moves, guilty) if is_explained(compared, moves) else compared
