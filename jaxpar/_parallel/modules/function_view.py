"""Plain functions: modules without parameters, or with parameters as their first argument."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from ..._tree import check_alive, is_staged, paths
from ..._typing import PyTree, Static
from ..placement import Placement
from ..spread import spread
from .definition import Definition


@dataclasses.dataclass(frozen=True)
class FunctionDefinition(Definition):
    """A function without its values, with which `bind(function, values)` returns it."""

    function: Static
    bind: Callable[[Any, Any], Callable[..., Any]]

    def apply(
        self,
        function: Callable[..., Any],
        values: PyTree,
        replica: jax.Array | None,
        args: tuple,
        kwargs: dict,
    ) -> tuple[PyTree, dict[Any, PyTree]]:
        del replica
        return function(self.bind(self.function.value, values), *args, **kwargs), {}


def _without_values(function: Callable[..., Any], values: tuple) -> Callable[..., Any]:
    del values
    return function


class FunctionView:
    """A function as a module that has no arrays."""

    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise TypeError(f"{type(function).__name__} cannot be called; give a Flax module or a function.")
        refuse_hidden_module(function)
        self.definition = FunctionDefinition(Static(function), _without_values)

    def values(self, placement: Placement) -> tuple:
        del placement
        return ()

    def commit(self, changes: dict[Any, PyTree]) -> None:
        del changes


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """A function whose first argument is its parameters, any tree of arrays, with these."""

    function: Callable[..., Any]
    parameters: PyTree

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        return self.function(self.parameters, *args, **kwargs)


class AppliedView(FunctionView):
    def __init__(self, applied: Applied):
        super().__init__(applied.function)
        self.definition = FunctionDefinition(Static(applied.function), functools.partial)
        self.parameters = applied.parameters

    def values(self, placement: Placement) -> PyTree:
        leaves, form = jax.tree.flatten(self.parameters)
        names = paths(self.parameters, "parameters")
        check_alive(leaves, names, "DistributedDataParallel")
        if is_staged():
            return self.parameters
        return jax.tree.unflatten(form, spread(leaves, names, placement))


def refuse_hidden_module(value: object) -> None:
    # jit would take the module's arrays for constants: they would never be updated, and never be averaged.
    hidden = next((content for content in _contents(value) if isinstance(content, nnx.Module)), None)
    if hidden is not None:
        raise TypeError(
            f"{getattr(value, '__qualname__', value)!r} holds the NNX module {type(hidden).__name__}; "
            "its arrays would be frozen into the compiled program. Use the module itself (give it a "
            "__call__), so that jaxpar sees its variables."
        )


def _contents(value: object) -> list[Any]:
    if isinstance(value, functools.partial):
        return [*value.args, *value.keywords.values(), *_contents(value.func)]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if not isinstance(value, types.FunctionType):
        return []
    contents = []
    for cell in value.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            contents.append(cell.cell_contents)
    return contents
