"""ModelPair: the two modules under comparison, the links between their leaves, and a factory of sides."""

from __future__ import annotations

import dataclasses
import functools

import torch

from ._levels import Sides
from ._sides.constants import Constants
from ._sides.flax_side import FlaxSide
from ._sides.step_data import OWN, Task
from ._sides.torch_side import TorchSide
from ._weights import Links
from ._weights.tree import FlaxModule, Variables
from .measuring import Level


@dataclasses.dataclass(frozen=True)
class ModelPair:
    torch_module: torch.nn.Module
    flax_module: FlaxModule
    variables: Variables | None  # a Linen module's; zeros if torch's weights are loaded
    task: Task
    links: Links  # the torch tensors of each Flax leaf
    weights: str  # "torch" if Flax gets torch's weights, "own" if each module keeps its own
    # One Flax side per dtype, so that later sides reuse its compiled step.
    _candidates: dict[str, FlaxSide] = dataclasses.field(default_factory=dict, compare=False)

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide:
        return TorchSide(self.torch_module, self.links, self.task, dtype, constants)

    def candidate(self, reference: TorchSide, constants: Constants | None = None) -> FlaxSide:
        """Return Flax's side in the reference's dtype, with its weights unless both have their own."""
        dtype = reference.dtype
        if constants is not None:
            side = self._candidate(dtype, constants)
        else:
            if dtype not in self._candidates:
                self._candidates[dtype] = self._candidate(dtype)
            side = self._candidates[dtype].restarted()
        if self.weights == "torch":
            side.load(reference.weights(), reference.state())
        return side

    def _candidate(self, dtype: str, constants: Constants | None = None) -> FlaxSide:
        ignored = self.links.ignored
        return FlaxSide(
            self.flax_module, self.task, dtype, self.variables, ignored=ignored, constants=constants
        )

    def sides(self, level: Level, dtype: str) -> Sides[TorchSide]:
        """Return the sides of a level, all with the same weights."""
        if level is Level.SEMANTIC:
            reference = self.reference("float64")
            single = functools.partial(self.reference, "float32")
            return Sides(reference, self.candidate(reference), single=single)
        reference = self.reference(OWN if level is Level.AS_IT_RUNS else dtype)
        oracle = self.reference("float64")
        # The oracle starts from the rounded weights, so that rounding them counts as neither side's error.
        oracle.continue_from(reference)
        return Sides(reference, self.candidate(reference), oracle)
