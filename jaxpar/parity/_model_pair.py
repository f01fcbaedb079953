"""ModelPair: the two modules that should be the same, which leaf is which, and sides of them in any type."""

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
    """Two modules and their task.

    Attributes:
      variables: of a Linen module; zeros where the weights are torch's.
      links: which Flax leaf is made of which torch tensors.
      weights: "torch" if Flax gets torch's, "own" if each keeps its own.
    """

    torch_module: torch.nn.Module
    flax_module: FlaxModule
    variables: Variables | None
    task: Task
    links: Links
    weights: str
    _candidates: dict[str, FlaxSide] = dataclasses.field(default_factory=dict, compare=False)
    """One side of each type: its compiled step serves all that follow."""

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide:
        return TorchSide(self.torch_module, self.links, self.task, dtype, constants)

    def candidate(self, reference: TorchSide, constants: Constants | None = None) -> FlaxSide:
        """In the reference's type, with its weights unless both have their own."""
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
        """Those that a level needs, all from the same weights."""
        if level is Level.SEMANTIC:
            reference = self.reference("float64")
            single = functools.partial(self.reference, "float32")
            return Sides(reference, self.candidate(reference), single=single)
        reference = self.reference(OWN if level is Level.AS_IT_RUNS else dtype)
        oracle = self.reference("float64")
        # The oracle starts from the rounded weights: what rounding them does is nobody's error.
        oracle.continue_from(reference)
        return Sides(reference, self.candidate(reference), oracle)
