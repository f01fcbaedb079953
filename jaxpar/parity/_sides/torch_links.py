"""TorchLinks: the links of a torch model with itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .step_data import Named

if TYPE_CHECKING:
    import torch


class TorchLinks:
    """The links of a torch model with itself: every array keeps its name and its layout.

    `names` are those that a comparison has, by default all.
    """

    def __init__(self, module: torch.nn.Module, names: Collection[str] | None = None):
        self.parameters_of = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self.names = frozenset(module.state_dict() if names is None else names)
        self.torch = tuple(self.names)
        self.parts = (self,)

    def parameters(self, tensors: Named) -> Named:
        return {name: x for name, x in self.to_flax(tensors).items() if name in self.parameters_of}

    def state(self, tensors: Named) -> Named:
        return {name: x for name, x in self.to_flax(tensors).items() if name not in self.parameters_of}

    def to_flax(self, tensors: Named, gradient: bool = False) -> Named:
        return {name: x for name, x in tensors.items() if name in self.names}

    def gradients(self, tensors: Named) -> Named:
        return self.to_flax(tensors)
