"""TorchTree: a torch model in the place of the Flax model, whose leaves are its state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ..._rulebook import Rule, same
from .._tensors import array_of
from .pytree_model import is_of_torch
from .source import source_of
from .tree import LeafSpec, Tree, tree_of

if TYPE_CHECKING:
    import torch


class TorchTree(Tree):
    """Layers are the modules without children, and attention: torch's containers have none of their own."""

    def __init__(self, module: torch.nn.Module):
        source = source_of(module)
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self.module, self.wrapped = module, False
        self.layers = dict(source.modules)
        self.aliases = {name: group[0] for group in source.tied for name in group[1:]}
        self.tensors = {name: x for name, x in source.tensors.items() if name not in self.aliases}
        self.leaves = {
            name: LeafSpec(tuple(x.shape), _dtype(x), name in parameters) for name, x in self.tensors.items()
        }
        self.names = {path: path for path in (*self.layers, *source.tensors)}
        self.files = {name: name for name in self.leaves}

    def rule(self, path: str) -> Rule | None:
        """Return a rule that converts nothing: all arrays have torch's layout already."""
        layer: Any = self.layers.get(path)
        if layer is None or hasattr(layer, "shown_name"):
            return None  # a parameter, or a function
        if any(True for _ in layer.children()) and not _computes(layer):
            return None
        bases = (base for base in type(layer).__mro__ if base.__module__.startswith("torch.nn."))
        parts = tuple(same(name) for name in layer.state_dict())
        return Rule(type(layer).__name__, parts, also=tuple(base.__name__ for base in bases))

    def values(self) -> dict[str, Any]:
        return {name: array_of(x) for name, x in self.tensors.items()}

    def write(self, values: Mapping[str, np.ndarray]) -> torch.nn.Module:
        raise TypeError("a torch module is loaded by its own load_state_dict")


def candidate_tree(module: Any, *arguments: Any, **options: Any) -> Tree:
    """Return `tree_of`, or a TorchTree for a torch module."""
    return TorchTree(module) if is_of_torch(module) else tree_of(module, *arguments, **options)


def _computes(layer: torch.nn.Module) -> bool:
    """Whether a layer of torch's own computes with its own parameters, as MultiheadAttention does."""
    has_own = any(True for _ in layer.parameters(recurse=False))
    return has_own and type(layer).__module__.startswith("torch.nn.modules.")


def _dtype(tensor: torch.Tensor) -> np.dtype:
    return jnp.dtype(str(tensor.dtype).removeprefix("torch."))
