"""WeightSource: a torch model's weights by name, from a module, a state_dict or a file."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..._typing import Shape
from ...errors import MatchError
from .._files import read_weights
from .._tensors import array_of, is_tensor

if TYPE_CHECKING:
    import torch


TorchWeights: TypeAlias = "torch.nn.Module | Mapping[str, Any] | str | os.PathLike[str]"


@dataclasses.dataclass(frozen=True, eq=False)
class WeightSource(Mapping):
    """A torch model's arrays by name, each read on access, because a file may be larger than memory."""

    tensors: Mapping[str, Any]
    kinds: Mapping[str, tuple[str, ...]]  # classes by submodule path; empty for a state_dict
    tied: tuple[tuple[str, ...], ...]  # groups of names of one tensor
    shares: bool  # whether `tied` is complete: a dict may hold copies of one tensor
    label: str
    modules: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # empty for a state_dict

    @functools.cached_property
    def shapes(self) -> dict[str, Shape]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def without(self, names: Collection[str]) -> WeightSource:
        tensors = {name: tensor for name, tensor in self.tensors.items() if name not in names}
        groups = (tuple(name for name in group if name not in names) for group in self.tied)
        return dataclasses.replace(self, tensors=tensors, tied=tuple(group for group in groups if group))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors  # without reading it

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        if not is_tensor(tensor):
            return np.asarray(tensor)
        try:
            return array_of(tensor)
        except (TypeError, RuntimeError) as error:
            raise MatchError(f"{self.label}: {name} cannot be read: {error}.") from error


def source_of(weights: TorchWeights) -> WeightSource:
    loaded: Any = sys.modules.get("torch")
    if loaded is not None and isinstance(weights, loaded.nn.Module):
        modules = dict(weights.named_modules(remove_duplicate=False))
        kinds = {
            path: tuple(kind.__name__ for kind in type(module).__mro__[:-1])
            for path, module in modules.items()
        }
        source = _checked(weights.state_dict(), kinds, type(weights).__name__)
        return dataclasses.replace(source, modules=modules)
    if isinstance(weights, (str, os.PathLike)):
        return _checked(read_weights(weights), {}, os.fspath(weights))
    if isinstance(weights, Mapping):
        return _checked(weights, {}, "the state_dict")
    raise TypeError(
        f"{type(weights).__module__}.{type(weights).__qualname__} is no torch module, state_dict or path."
    )


def _checked(tensors: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]], label: str) -> WeightSource:
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise MatchError(f"{label}: the key {name!r} is no text; a state_dict maps names to tensors.")
        if not is_tensor(tensor) and not (hasattr(tensor, "__array__") and hasattr(tensor, "dtype")):
            nested = f", as in source[{name!r}]" if isinstance(tensor, Mapping) else ""
            raise MatchError(
                f"{label}: {name} is a {type(tensor).__name__}, not a tensor. If this is a checkpoint with "
                f"more than weights in it, give the state_dict inside it{nested}."
            )
    return WeightSource(tensors, kinds, tuple(_groups(tensors)), bool(kinds), label)


def _groups(tensors: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    by_memory: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if is_tensor(tensor) and tensor.numel() and str(tensor.layout) == "torch.strided":
            # Not only the pointer: a view of the first rows has the address of the full tensor.
            memory = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device
            by_memory.setdefault(memory, []).append(name)
    return (tuple(names) for names in by_memory.values() if len(names) > 1)
