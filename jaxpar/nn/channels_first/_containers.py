"""Sequential, ModuleList and ModuleDict: torch's containers; children of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from flax import nnx
from flax.nnx import Module as Module

from .._function import Function as Function
from .._layer import Layer
from .._layer import deepcopy as deepcopy
from .._layer import freeze as freeze

Method = TypeVar("Method", bound=Callable[..., Any])


class _Untraced:
    # tabulate runs every public function of a class under jit, where iterators and strings are invalid
    # results. It leaves what is not a plain function as it is.

    def __init__(self, method: Callable[..., Any]):
        functools.update_wrapper(self, method)
        self.method = method

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.method.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


def _untraced(method: Method) -> Method:
    return cast(Method, _Untraced(method))


class _Container(Layer):
    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Until `names` exists, only Flax and the constructor assign attributes.
        if isinstance(value, nnx.Module) and name not in vars(self).get("names", (name,)):
            self.names = (*self.names, name)

    def add_module(self, name: str, module: Any) -> None:
        """Append `module`, or replace the element called `name`, which keeps its position."""
        setattr(self, name, module)
        self.names = tuple(dict.fromkeys((*self.names, name)))

    @_untraced
    def children(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.names)

    @_untraced
    def named_children(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.names)

    def __len__(self) -> int:
        return len(self.names)


class _Row(_Container):
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of([(name, getattr(self, name)) for name in self.names[index]])
        return getattr(self, self.names[index])

    def __setitem__(self, index: int, module: Any) -> None:
        setattr(self, self.names[index], module)

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def append(self, module: Any) -> Any:
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Any) -> Any:
        elements = [*self]
        elements.insert(index, module)
        self.append(elements[-1])
        for position, element in enumerate(elements):
            self[position] = element
        return self

    def __iadd__(self, modules: Iterable[Any]) -> Any:
        return self.extend(modules)

    def __add__(self, modules: Iterable[Any]) -> Any:
        # Renumbered, as in torch: the names of both rows start at "0".
        return self._of([(str(index), module) for index, module in enumerate([*self, *modules])])

    def _of(self, named: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError


class Sequential(_Row):
    """Call the elements in order, each with the previous result.

    Args:
      modules: the elements, named "0", "1" and so on; or one dict of elements by name.

    Indices, slices, `append`, `extend`, `insert`, `+` and `add_module` work as in torch, and elements may
    be functions.

    >>> from flax import nnx
    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import channels_first as nn
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, rngs=nnx.Rngs(0)), nn.ReLU(), nn.Flatten())
    >>> net(jnp.ones((2, 3, 4, 4))).shape
    (2, 32)

    torch counterpart: `torch.nn.Sequential`. `nnx.Sequential` unpacks a tuple into several arguments.
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

    def _of(self, named: list[tuple[str, Any]]) -> Sequential:
        return Sequential(dict(named))


class ModuleList(_Row):
    """A list of modules, "0", "1" and so on, with indices, slices, `append`, `extend`, `insert` and `+`.

    >>> from jaxpar.nn import channels_first as nn
    >>> layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    >>> len(layers), [name for name, _ in layers.named_children()]
    (2, ['0', '1'])

    torch counterpart: `torch.nn.ModuleList`.
    """

    def __init__(self, modules: Iterable[Any] = ()):
        super().__init__()
        self.extend(modules)

    def _of(self, named: list[tuple[str, Any]]) -> ModuleList:
        return ModuleList(module for _, module in named)


class ModuleDict(_Container):
    """Modules by name, in the order in which they were added.

    >>> from jaxpar.nn import channels_first as nn
    >>> nn.ModuleDict({"act": nn.ReLU(), "out": nn.Tanh()}).keys()
    ('act', 'out')

    torch counterpart: `torch.nn.ModuleDict`.
    """

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

    @_untraced
    def keys(self) -> tuple[str, ...]:
        return self.names

    @_untraced
    def values(self) -> list[Any]:
        return list(self.children())

    @_untraced
    def items(self) -> list[tuple[str, Any]]:
        return list(self.named_children())


def named_children(module: nnx.Module) -> Iterator[tuple[str, nnx.Module]]:
    """Yield the modules that are attributes of a module, with their names, in the order of assignment.

    A module assigned twice is yielded once. torch counterpart: `torch.nn.Module.named_children`;
    `nnx.iter_children` sorts by name.
    """
    contained = isinstance(module, Sequential | ModuleList | ModuleDict)
    named = module.named_children() if contained else vars(module).items()
    modules: dict[int, tuple[str, nnx.Module]] = {}
    for name, child in named:
        if isinstance(child, nnx.Module):
            modules.setdefault(id(child), (name, child))
    yield from modules.values()


def children(module: nnx.Module) -> Iterator[nnx.Module]:
    """Yield `named_children` without names. torch counterpart: `torch.nn.Module.children`."""
    return (child for _, child in named_children(module))


def named_modules(module: nnx.Module, prefix: str = "") -> Iterator[tuple[str, nnx.Module]]:
    """Yield a module, as "", and its descendants with their paths, parents first, each once.

    torch counterpart: `torch.nn.Module.named_modules`; `nnx.iter_modules` yields children first.

    >>> from flax import nnx
    >>> from jaxpar.nn import channels_first as nn
    >>> [name for name, _ in nn.named_modules(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())))]
    ['', '0', '1', '1.0']
    """
    reached: set[int] = set()

    def walk(module: nnx.Module, name: str) -> Iterator[tuple[str, nnx.Module]]:
        if id(module) not in reached:
            reached.add(id(module))
            yield name, module
            for key, child in named_children(module):
                yield from walk(child, f"{name}.{key}" if name else key)

    return walk(module, prefix)


def modules(module: nnx.Module) -> Iterator[nnx.Module]:
    """Yield `named_modules` without names. torch counterpart: `torch.nn.Module.modules`."""
    return (child for _, child in named_modules(module))
