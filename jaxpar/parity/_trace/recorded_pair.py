"""TracePair: a pair whose torch side is read from a trace, in Flax's names and layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model_pair import ModelPair
from .._sides.step_data import Batch, Named, Observation, Task
from .._weights import Links
from ..measuring import Key, Kind
from .reading import TraceFile

NAMED_BY_LEAF = (Kind.GRADIENT, Kind.STATE, Kind.UPDATE, Kind.WEIGHT)


class TracePair(ModelPair):
    """A pair whose torch module is a trace."""

    @property
    def recorded(self) -> TraceFile:
        return self.torch_module

    def reference(self, dtype: str, constants: Any = None) -> Any:
        return RecordedSide(self.recorded, self.links, self.task, dtype)

    def recorded_perturbations(self, keeps_ties: bool) -> Mapping[Key, tuple[float, float]]:
        table = self.recorded.moves(self.recorded.manifest["lost_digits"][keeps_ties])
        return by_leaf(table, self.links)


def by_leaf(table: Mapping[Key, tuple[float, float]], links: Links) -> dict[Key, tuple[float, float]]:
    """Rename torch's tensors to the leaves that they make; a leaf moves as far as the farthest of them."""
    leaves: dict[str, list[str]] = {}
    for part in (*links.parts, *links.repeats):
        for name in part.torch:
            for tied in (name, *links.tied.get(name, ())):
                leaves.setdefault(tied, []).extend(part.flax)
    renamed: dict[Key, tuple[float, float]] = {}
    for (kind, name, step), moves in table.items():
        for leaf in leaves.get(name, ()) if kind in NAMED_BY_LEAF else (name,):
            before = renamed.get((kind, leaf, step), (0.0, 0.0))
            renamed[kind, leaf, step] = max(before[0], moves[0]), max(before[1], moves[1])
    return renamed


class RecordedSide:
    """torch's side, read from a trace, in Flax's names and layout."""

    def __init__(self, recorded: TraceFile, links: Links, task: Task, dtype: str):
        self.recorded, self.links, self.task, self.dtype, self.steps = recorded, links, task, dtype, 0

    def weights(self) -> Named:
        return self.links.parameters(self._arrays())

    def state(self) -> Named:
        return self.links.state(self._arrays())

    def _arrays(self) -> Named:
        return self.recorded.weights_and_state(self.steps)

    def step(self, batch: Batch) -> Observation:
        self.steps += 1
        results = self.recorded.observation(self.steps)
        single = self.recorded.below("single/")
        gradients = single if self.dtype == "float32" else results.gradients
        return Observation(
            outputs={name: self.task.layout.outputs(x) for name, x in results.outputs.items()},
            loss=results.loss,
            input_gradients={
                flax_name: move(results.input_gradients[name])
                for name, (flax_name, move) in batch.common.items()
                if name in results.input_gradients
            },
            # For a complex parameter, the recorder has conjugated the gradient already.
            gradients=self.links.gradients(gradients),
            state=self.links.state(self._arrays()),
            weights=self.links.parameters(self._arrays()),
            masks=results.masks,
        )
