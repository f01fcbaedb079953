"""Sequential, ModuleList and ModuleDict: torch's containers, whose elements are attributes named as in torch.

`nnx.Sequential` passes a tuple on as several arguments and has no names, and `nnx.List` has none either. Here
`net.features[0]` is the attribute "0" of `features`, as its path in a state_dict says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flax import nnx


class _Container(nnx.Module):
    """Elements in the order in which they were added, by `add_module` or as attributes."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nnx.Module) and name not in vars(self).get("names", (name,)):
            self.names = (*self.names, name)

    def add_module(self, name: str, module: Any) -> None:
        """Adds an element, or replaces the one of this name in its place."""
        setattr(self, name, module)
        self.names = tuple(dict.fromkeys((*self.names, name)))

    def children(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.names)

    def named_children(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.names)

    def __len__(self) -> int:
        return len(self.names)


class _Row(_Container):
    """A container with places."""

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            kept = [(name, getattr(self, name)) for name in self.names[place]]
            return self._of(kept)
        return getattr(self, self.names[place])

    def __setitem__(self, place: int, module: Any) -> None:
        setattr(self, self.names[place], module)

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def append(self, module: Any) -> Any:
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        for module in modules:
            self.append(module)
        return self

    def __iadd__(self, modules: Iterable[Any]) -> Any:
        return self.extend(modules)

    def __add__(self, modules: Iterable[Any]) -> Any:
        return self._of([(str(place), module) for place, module in enumerate([*self, *modules])])

    def _of(self, kept: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError


class Sequential(_Row):
    """Calls its elements one after the other, each with the result of the one before.

    Args:
      modules: the elements, "0", "1" and so on; or one dict of elements by their names.

    Indices, slices, `append`, `extend`, `+` and `add_module` work as in torch; elements may be functions.

    torch counterpart: `torch.nn.Sequential`. `nnx.Sequential` passes a tuple on as several arguments.
    """

    def __init__(self, *modules: Any):
        super().__init__()
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], Mapping) else None
        for name, module in named.items() if named is not None else enumerate(modules):
            self.add_module(str(name), module)

    def __call__(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x

    def _of(self, kept: list[tuple[str, Any]]) -> Sequential:
        return Sequential(dict(kept))


class ModuleList(_Row):
    """A list of modules, "0", "1" and so on, with indices, slices, `append`, `extend` and `+`.

    torch counterpart: `torch.nn.ModuleList`.
    """

    def __init__(self, modules: Iterable[Any] = ()):
        super().__init__()
        self.extend(modules)

    def _of(self, kept: list[tuple[str, Any]]) -> ModuleList:
        return ModuleList(module for _, module in kept)


class ModuleDict(_Container):
    """Modules by name, in order. torch counterpart: `torch.nn.ModuleDict`."""

    def __init__(self, modules: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()):
        super().__init__()
        self.update(modules)

    def update(self, modules: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        for name, module in modules.items() if isinstance(modules, Mapping) else modules:
            self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, module: Any) -> None:
        self.add_module(name, module)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def keys(self) -> tuple[str, ...]:
        return self.names

    def values(self) -> list[Any]:
        return list(self.children())

    def items(self) -> list[tuple[str, Any]]:
        return list(self.named_children())
