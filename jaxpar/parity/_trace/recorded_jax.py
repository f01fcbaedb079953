"""RecordedJaxPair: a pair whose JAX side is read from a trace, and whose torch side runs with its weights.

compare loads torch's weights into the JAX model. A recorded side cannot be loaded, so torch's side gets the
recorded weights and masks instead.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from ...errors import MaskError
from .._model_pair import ModelPair
from .._sides.constants import Constants
from .._sides.outputs import Outputs
from .._sides.step_data import Batch, Named, Observation
from .._sides.torch_side import TorchSide
from .._tensors import tensor_of
from .._weights import Links
from ..measuring import Key
from .reading import JaxCall, TraceFile

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
