"""TorchHalf: the torch half of a comparison, without a Flax model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from .._sides.call_arguments import Call
from .._sides.constants import Constants
from .._sides.step_data import Batch, Named, Task
from .._sides.torch_side import TorchSide


class TorchLinks:
    """The links of a torch model with itself: every array keeps its name and its layout."""

    def __init__(self, module: torch.nn.Module):
        self.parameters_of = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self.torch = tuple(module.state_dict())
        self.parts = (self,)

    def parameters(self, tensors: Named) -> Named:
        return {name: x for name, x in tensors.items() if name in self.parameters_of}

    def state(self, tensors: Named) -> Named:
        return {name: x for name, x in tensors.items() if name not in self.parameters_of}

    def to_flax(self, tensors: Named, gradient: bool = False) -> Named:
        return tensors

    def gradients(self, tensors: Named) -> Named:
        return tensors


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
        return TorchSide(self.module, TorchLinks(self.module), self.task, dtype, constants)  # type: ignore[arg-type]
