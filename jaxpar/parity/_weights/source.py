"""WeightSource: a torch model's weights by name, and Names: the Flax paths that these names mean."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..._typing import Shape
from ...errors import MatchError
from .._files import read_weights
from .._tensors import array_of, is_tensor
from .mapping import Plain, Target, path_of
from .tree import Outline, inside, join, prefixes, torch_like

if TYPE_CHECKING:
    import torch


TorchWeights: TypeAlias = "torch.nn.Module | WeightSource | Mapping[str, Any] | str | os.PathLike[str]"


@dataclasses.dataclass(frozen=True, eq=False)
class WeightSource(Mapping):
    """A torch model's arrays by name, each read on access, because a file may be larger than memory."""

    tensors: Mapping[str, Any]
    kinds: Mapping[str, tuple[str, ...]]  # classes by submodule path; empty for a state_dict
    tied: tuple[tuple[str, ...], ...]  # groups of names of one tensor
    shares: bool  # whether `tied` is complete: a dict may hold copies of one tensor
    label: str
    modules: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # empty for a state_dict
    buffers: frozenset[str] = frozenset()  # of a module's tensors

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
    if isinstance(weights, WeightSource):
        return weights
    loaded: Any = sys.modules.get("torch")
    if loaded is not None and isinstance(weights, loaded.nn.Module):
        modules = dict(weights.named_modules(remove_duplicate=False))
        kinds = {
            path: tuple(kind.__name__ for kind in type(module).__mro__[:-1])
            for path, module in modules.items()
        }
        source = _checked(weights.state_dict(), kinds, type(weights).__name__)
        buffers = frozenset(name for name, _ in weights.named_buffers(remove_duplicate=False))
        return dataclasses.replace(source, modules=modules, buffers=buffers)
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


WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original([01])$")  # only of weight_norm
COMPILED = re.compile(r"(^|(?<=\.))_orig_mod(\.|$)")  # by torch.compile


class Names:
    def __init__(
        self, source: WeightSource, tree: Outline, entries: Plain, mapped_only: frozenset[str] = frozenset()
    ):
        self.mapped_only = mapped_only  # paths without a target of their own name
        self.bare = unwrapped(source.tensors, source.kinds)
        self.raw = {bare: raw for raw, bare in self.bare.items()}
        self.kinds = {self.bare[path]: kinds for path, kinds in source.kinds.items()}
        self.tree = tree
        self._flax = set(tree.names.values())
        self.entries = {self._bare_key(key): target for key, target in entries.items()}
        self._targets = {key: self._named(target) for key, target in self.entries.items()}
        self.descendants: dict[str, list[str]] = {path: [] for path in self.kinds}
        for name in (self.bare[raw] for raw in source.tensors):
            for path in prefixes(name):
                self.descendants.setdefault(path, []).append(name)
        # Paths need a raw form too, because Link.torch is passed to torch's get_submodule.
        for path in list(self.descendants):
            self.raw.setdefault(path, self._raw_path(path))
        self._leading: dict[str, list[tuple[bool, str]]] = {}
        for path in self.descendants:
            target, explicit = self.target(path)
            self._leading.setdefault(target, []).append((explicit, path))

    def entry(self, name: str) -> tuple[str, Target] | None:
        """Return the mapping's (key, target) with the longest key that fits, or None."""
        key = next((p for p in reversed(prefixes(name)) if p in self.entries), None)
        return None if key is None else (key, self.entries[key])

    def target(self, name: str) -> tuple[str, bool]:
        """Return the Flax name for a bare name, and whether it comes from the mapping."""
        entry = self.entry(name)
        if entry is None and self.mapped_only & set(prefixes(name)):
            return f"mapped_only: {name}", False
        if entry is None:
            return self._weight_norm(torch_like(name)), False
        key = entry[0]
        return self._weight_norm(torch_like(join(self._targets[key], inside(name, key) or ""))), True

    def leading_to(self, path: str) -> list[str]:
        """The bare names and paths that translate to a Flax path, exactly equal ones first."""
        name = self.tree.names[path]
        leading = self._leading.get(torch_like(name), [])
        # The mapping is explicit, while a torch module may have the same name by coincidence.
        explicit = [bare for by_mapping, bare in leading if by_mapping]
        return explicit or sorted((bare for _, bare in leading), key=lambda bare: bare != name)

    def follows(self, name: str, above: str) -> bool:
        key = self.entry(name)
        return key is None or key[0] in prefixes(above)

    def _weight_norm(self, target: str) -> str:
        older = PARAMETRIZED.sub(lambda match: match[1] + ("_g", "_v")[int(match[2])], target)
        return older if older in self._flax else target

    def _named(self, target: Target) -> str:
        path = path_of(target)
        if path is None:  # a tuple of layers is paired by `stacks`, never by name
            return f"a stack: {target}"
        return self.tree.names.get(self.tree.real_path(path), path)

    def _bare_key(self, key: str) -> str:
        if key in self.bare:
            return self.bare[key]
        # A state_dict has no module paths, so the prefix is taken from the first name under the path.
        raw = next((raw for raw in self.bare if raw.startswith(key + ".")), None)
        if raw is None:
            return key
        suffix = raw[len(key) :]
        return self.bare[raw].removesuffix(suffix) if self.bare[raw].endswith(suffix) else key

    def _raw_path(self, path: str) -> str:
        if not self.descendants[path]:
            return path
        name = self.descendants[path][0]
        return self.raw[name].removesuffix(name[len(path) :]).rstrip(".")


def unwrapped(names: Iterable[str], kinds: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return names and module paths without the prefixes of torch.compile, DataParallel and the like."""
    names, levels = list(names), 0
    if not kinds:
        # Without class names, a `module.` that not all names begin with may be the user's own attribute.
        # Nested wrappers produce `module.module.`
        while names and all(_strip(name, levels).startswith("module.") for name in names):
            levels += 1
        return {name: _strip(name, levels) for name in names}
    return {name: _without_wrappers(name, kinds) for name in [*names, *kinds]}


def _without_wrappers(name: str, kinds: Mapping[str, tuple[str, ...]]) -> str:
    parts = name.split(".") if name else []
    remaining = [
        part
        for i, part in enumerate(parts)
        if not (part == "module" and WRAPPERS & set(kinds.get(".".join(parts[:i]), ())))
    ]
    return COMPILED.sub("", ".".join(remaining)).rstrip(".")


def _strip(name: str, levels: int) -> str:
    name = COMPILED.sub("", name)
    for _ in range(levels):
        name = COMPILED.sub("", name.removeprefix("module."))
    return name
