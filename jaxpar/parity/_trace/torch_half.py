"""TorchHalf: the torch half of a comparison, without a Flax model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from .._sides.call_arguments import Call
from .._sides.constants import Constants
from .._sides.step_data import Batch, Task
from .._sides.torch_links import TorchLinks
from .._sides.torch_side import TorchSide


@dataclasses.dataclass
class TorchHalf:
    """The torch half of a comparison: the model, its task and its batches."""

    module: torch.nn.Module
    task: Task
    batches: Callable[[int], Batch]
    inputs: Callable[[int], Call]  # without keyword arguments that only torch's call has
    steps: int

    def recorded_perturbations(self, keeps_ties: bool) -> None:
        return None

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide:
        return TorchSide(self.module, TorchLinks(self.module), self.task, dtype, constants)
