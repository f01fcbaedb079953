"""Hooks of torch's modules: which functions they are, and copies of modules whose hooks are the copy's own.

`copy.deepcopy` copies a bound method with its module. A function keeps its variables, so that a copy's hook
would write to the original.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from torch import nn

KINDS = ("_forward_hooks", "_forward_pre_hooks")


class Copied:
    """A hook whose variables are copied with its module."""

    def __init__(self, function: FunctionType):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        f = self.function
        cells = tuple(CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in f.__closure__ or ())
        copied = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, cells)
        copied.__kwdefaults__ = f.__kwdefaults__
        return Copied(copied)


def with_copied_hooks(net: nn.Module) -> nn.Module:
    """Make the functions among a module's hooks `Copied`; returns the module."""
    for child in net.modules():
        for kind in KINDS:
            hooks = vars(child)[kind]
            hooks.update({key: Copied(hook) for key, hook in hooks.items() if type(hook) is FunctionType})
    return net


def hook_names(net: nn.Module) -> frozenset[str]:
    """Return the names of the functions that are hooks of a module or its submodules."""
    return frozenset(function.__name__ for _, function in _functions(net))


def hook_owners(net: nn.Module) -> list[Any]:
    """Return the objects whose methods are hooks, and those that hooks have as variables."""
    cells = [cell for _, function in _functions(net) for cell in function.__closure__ or ()]
    return [*(owner for owner, _ in _functions(net)), *(cell.cell_contents for cell in cells)]


def _functions(net: nn.Module) -> Iterator[tuple[Any, FunctionType]]:
    """Yield the hooks of all modules: the object of a method, or None, and the function."""
    for hook in (hook for child in net.modules() for kind in KINDS for hook in vars(child)[kind].values()):
        while isinstance(hook, functools.partial):
            hook = hook.func
        function = getattr(hook, "__func__", getattr(hook, "function", hook))
        if isinstance(function, FunctionType):
            yield getattr(hook, "__self__", None), function
