"""against_jax: judge a torch model by a trace of a JAX model, in the loop of `compare`.

compare loads torch's weights into the JAX model. A recorded side cannot be loaded, so torch's side gets the
recorded weights and masks instead.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from ...errors import FileError, MaskError
from .._comparison import Comparison
from .._determinism import forms, generators, number_differences, require_equal, throws
from .._divergence.first import find, layers_agree
from .._divergence.search import Budget
from .._exactness import exact
from .._float32_constants import explain_by_constants
from .._levels import Findings, semantic
from .._model_pair import Inputs, ModelInputs, ModelPair
from .._reach import NOT_REACHED, of_call, of_rows, unreached
from .._sides.constants import Constants
from .._sides.outputs import Outputs
from .._sides.step_data import Batch, Layout, Named, Observation, Task
from .._sides.torch_choices import counted
from .._sides.torch_side import TorchFunction, TorchSide, torch_parameters
from .._stochastic_arithmetic import judge_lost_digits
from .._tensors import tensor_of
from .._weights import Links
from .._weights.mapping import Entries
from .._weights.source import source_of
from .._weights.unmatched import complete_links
from ..measuring import Key, Level, Policy, judge
from .reading import JaxCall, TraceFile, read

Masks = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class RecordedJaxPair(ModelPair):
    """A pair whose JAX model is a trace."""

    masks: tuple[Masks, ...] = ()  # of each step, in torch's shapes

    @property
    def recorded(self) -> TraceFile:
        return self.flax_module

    def reference(self, dtype: str, constants: Constants | None = None) -> MaskedTorchSide:
        return MaskedTorchSide(self.masks, self.torch_module, self.links, self.task, dtype, constants)

    def candidate(self, reference: TorchSide, constants: Constants | None = None) -> Any:
        return RecordedJaxSide(self.recorded, self.links, reference, reference.steps)

    def recorded_moves(self) -> Mapping[Key, float]:
        return {
            key: far for key, (_, far) in self.recorded.moves(self.recorded.manifest["constants"]).items()
        }


class MaskedTorchSide(TorchSide):
    """torch's side, whose dropout has the masks of each step."""

    def __init__(self, masks: tuple[Masks, ...], *arguments: Any):
        super().__init__(*arguments)
        self.masks = masks

    def step(
        self,
        batch: Batch,
        observe: AbstractContextManager | None = None,
        forward_only: bool = False,
        masks: Sequence[np.ndarray] | None = None,
    ) -> Observation:
        of_step = self.masks[self.steps] if self.masks and masks is None else masks
        return super().step(batch, observe, forward_only, of_step)


class RecordedJaxSide:
    """The JAX model's side, read from a trace; has FlaxSide's methods that a comparison calls."""

    is_recorded = True

    def __init__(self, recorded: TraceFile, links: Links, reference: TorchSide, steps: int = 0):
        self.recorded, self.links, self.reference, self.steps = recorded, links, reference, steps
        manifest = recorded.manifest
        self.tx = manifest["optimizer"]
        self.constants = Constants(
            originals=recorded.below("constants/"), exact=[*recorded.below("exact/").values()]
        )
        names = tuple(map(str, manifest["left_out"]))
        self.returned = Outputs({}, manifest.get("sole"), names, manifest["numbers"])
        self.notes: list[str] = []  # the trace has the recording's

    def step(self, batch: Batch, masks: Masks = (), keep: bool = True, reseeded: bool = False) -> Observation:
        results = self.recorded.observation(self.steps + 1)
        self.steps += keep
        compared = {flax_name for flax_name, _ in batch.common.values()}
        return dataclasses.replace(
            results,
            masks=(),
            input_gradients={name: x for name, x in results.input_gradients.items() if name in compared},
            gradients=self._compared(results.gradients),
            state=self._compared(results.state),
            weights=self._compared(results.weights),
        )

    def calls(self, step: int) -> dict[tuple[str, int], JaxCall]:
        return self.recorded.jax_calls(step)

    def weights(self) -> Named:
        return self._arrays(parameter=True)

    def state(self) -> Named:
        return self._arrays(parameter=False)

    def load(self, weights: Named, state: Named) -> None:
        """Give torch's side the recorded values of these leaves, where FlaxSide takes torch's values."""
        recorded = {**self.weights(), **self.state()}
        leaves = {name: recorded[name] for name in (*weights, *state) if name in recorded}
        tensors = self.reference.module.state_dict()
        for name, x in self.links.to_torch(leaves).items():
            tensors[name].copy_(tensor_of(np.array(x, order="C")))

    def restarted(self) -> RecordedJaxSide:
        return self.restarted_at(1)

    def restarted_at(self, step: int) -> RecordedJaxSide:
        """Return a side that takes this step next."""
        side = copy.copy(self)
        side.steps = step - 1
        return side

    def unoptimised(self) -> RecordedJaxSide:
        # Of small models, the recorded program has hardly any optimizations; see `CompiledStep`.
        return self.restarted()

    def gaps(self, training: bool) -> Iterator[str]:
        """Yield nothing: the gaps are among the trace's notes."""
        yield from ()

    def _arrays(self, parameter: bool) -> Named:
        arrays, leaves = self.recorded.weights_and_state(self.steps), self.links.leaves
        return {name: x for name, x in self._compared(arrays).items() if leaves[name].parameter == parameter}

    def _compared(self, arrays: Named) -> Named:
        """Return the arrays of leaves that the outline has, without ignored ones."""
        leaves, ignored = self.links.leaves, self.links.ignored
        return {name: x for name, x in arrays.items() if name in leaves and name not in ignored}


def with_weights(module: torch.nn.Module, links: Links, start: Named) -> torch.nn.Module:
    """Return a copy of a torch module with the recorded weights and statistics."""
    copied = copy.deepcopy(module).to("cpu")
    tensors = copied.state_dict(keep_vars=True)
    for name, x in links.to_torch(start).items():
        new, old = tensor_of(np.array(x, order="C")), tensors[name]
        narrow = new.to(old.dtype)
        # A JAX model in float64 keeps its digits in a torch model in float32.
        old.data = narrow if torch.equal(narrow.to(new.dtype), new) else new
    return copied


def fitting_masks(recorded: Sequence[Masks], side: TorchSide, batch: Batch, last: bool) -> tuple[Masks, ...]:
    """Return the masks of each step in the shapes in which torch's dropout draws; `last` as `Injection`."""
    shapes = [mask.shape for mask in side.step(batch, forward_only=True).masks]
    return tuple(_fitting(masks, shapes, last) for masks in recorded)


def _fitting(masks: Masks, shapes: Sequence[tuple[int, ...]], last: bool) -> Masks:
    if len(masks) != len(shapes):
        raise MaskError(
            f"parity.against_jax: JAX dropped {len(masks)} times in the trace and torch {len(shapes)} times. "
            "Is a Dropout missing or in evaluation mode? Record with training=False, or mend the model."
        )
    moved = [np.moveaxis(mask, -1, 1) if last and mask.ndim > 2 else mask for mask in masks]
    return tuple(
        mask if mask.shape == shape else other
        for mask, other, shape in zip(masks, moved, shapes, strict=True)
    )


def against_jax(
    trace: str | os.PathLike[str],
    torch_module: torch.nn.Module | Callable[..., Any],
    *,
    torch_inputs: Inputs = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    mapping: Entries | None = None,
    ignore_torch: Sequence[str] = (),
    ignore_flax: Sequence[str] = (),
    torch_kwargs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    search: bool = True,
) -> Comparison:
    """Check a JAX model, in a trace that `record_jax` wrote, against a torch model.

    The torch model gets the recorded weights and dropout masks. The JAX model's code is not needed.

    Args:
      trace: the folder that `record_jax` wrote.
      torch_module, mapping, ignore_torch, ignore_flax, torch_kwargs, policy: as for `compare`.
      torch_inputs: replaces the recorded inputs where the torch model takes different arguments.
      loss, optimizer: torch's halves of compare's pairs, if the trace was recorded with JAX's.
      search: whether the places that differ and their causes are searched if the models differ.

    Raises:
      FileError: the trace is missing, damaged or not one of JAX; no part is executed.
      MatchError: the model's tensors are not the trace's leaves.
      MaskError: both models do not drop in the same places.
      ValueError: the trace has a loss or an optimizer and the call does not, or the reverse.

    >>> import tempfile
    >>> import numpy as np, torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = parity.record_jax(folder, nnx.Linear(3, 4, rngs=nnx.Rngs(0)), np.ones((2, 3)))
    ...     parity.against_jax(trace, torch.nn.Linear(3, 4))
    <Comparison: semantic, same, 4 tensors>
    """
    started, recorded = time.perf_counter(), read(trace, "jax")
    import torch

    module = torch_module if isinstance(torch_module, torch.nn.Module) else TorchFunction(torch_module)
    options = {"mapping": mapping, "ignore_torch": ignore_torch, "ignore_flax": ignore_flax}
    with exact():
        task = _task(recorded, loss, optimizer)
        pair, batches, notes = _paired(recorded, module, task, torch_inputs, torch_kwargs, options)
        bounds = policy or Policy(Level.SEMANTIC)
        findings = Findings(notes=notes)
        compared = dataclasses.replace(
            _judged(pair, batches, bounds, findings),
            environment=recorded.environment(task),
            subject=f"{getattr(module, 'shown_name', type(module).__name__)} in torch against a trace of "
            f"{recorded.manifest['subject']}",
        )
        if findings.constants:
            agree = functools.partial(layers_agree, pair, batches)
            compared = judge_lost_digits(pair, batches, compared, agree)
            compared = explain_by_constants(pair, batches, compared, *findings.constants)
        if search and not compared.same:
            for divergence in find(pair, batches, compared, Budget()):
                compared = dataclasses.replace(compared, divergence=divergence)
    return dataclasses.replace(compared, seconds=time.perf_counter() - started)


def _task(recorded: TraceFile, loss: Any, optimizer: Any) -> Task:
    manifest = recorded.manifest
    layout = recorded.sensibly("layout", lambda: Layout.parse(tuple(manifest["layout"])))
    layout = layout.of_outputs(recorded.below("1/inputs/").values())
    names = manifest.get("outputs")
    outputs = None if names is None else {str(name): str(name) for name in names}
    return recorded.task("against_jax", loss, optimizer, layout, outputs)


def _paired(
    recorded: TraceFile,
    module: torch.nn.Module,
    task: Task,
    torch_inputs: Inputs,
    torch_kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[RecordedJaxPair, Callable[[int], Batch], list[str]]:
    outline, start = recorded.outline(), recorded.below("start/")
    if wrong := [
        name for name, x in outline.leaves.items() if name not in start or start[name].shape != x.shape
    ]:
        raise FileError(f"{recorded.folder}: it has no array of {wrong[0]} before the first step.")
    links = complete_links(outline, source_of(module), **options, function="parity.against_jax")
    of_both = (recorded.inputs, None, None)
    of_each = (None, torch_inputs, recorded.inputs)
    inputs = ModelInputs(
        None,
        task,
        of_both if torch_inputs is None else of_each,
        (torch_kwargs, None),
        function="against_jax",
    )

    batches = recorded.with_targets(inputs.batch)
    pair = RecordedJaxPair(with_weights(module, links, start), recorded, None, task, links, "torch")
    masks = [tuple(recorded.row(f"{step}/masks/")) for step in range(1, recorded.steps + 1)]
    side = TorchSide(pair.torch_module, links, task, "float64")
    fitted = fitting_masks(masks, side, batches(1), not task.channels_first)
    notes = [*map(str, recorded.manifest["notes"]), *inputs.notes()]
    return dataclasses.replace(pair, masks=fitted if any(masks) else ()), batches, notes


def _judged(
    pair: RecordedJaxPair, batches: Callable[[int], Batch], bounds: Policy, findings: Findings
) -> Comparison:
    recorded, task, notes = pair.recorded, pair.task, findings.notes
    sides = pair.sides(Level.SEMANTIC, "float64")
    if sides.reference.constants and sides.candidate.constants:
        findings.constants = sides.reference.constants, sides.candidate.constants
    for step in semantic(sides, batches, recorded.steps, findings):
        findings.add_rows(step)
        if step.number > 1:
            continue
        again, before = pair.reference("float64"), generators()
        repeated = again.step(step.batch, counted(notes, again.module))
        notes += throws(again.drawn, before)
        require_equal("the torch module", step.reference, repeated)
        returned = sides.candidate.returned
        notes += [*pair.links.left_out(), *forms(again.returned, returned)]
        findings.differences += number_differences(again.returned.numbers, returned.numbers)
    call = batches(1).torch_call
    gaps = [*of_call(call, "torch", torch_parameters(pair.torch_module, call)), *of_rows(findings.rows)]
    gaps += unreached(
        pair.torch_module, task.training, recorded.steps, task.optimizer is not None, findings.differences
    )
    return Comparison(
        level=Level.SEMANTIC,
        rows=judge(findings.differences, bounds, findings.noise),
        steps=recorded.steps,
        notes=(*notes, *(NOT_REACHED + gap for gap in gaps)),
        policy=bounds,
    )
