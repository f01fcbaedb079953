"""Plain functions: modules without parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._placement import Placement
from .._typing import PyTree, Static


@dataclasses.dataclass(frozen=True)
class FunctionDefinition:
    function: Static

    def __call__(
        self, values: tuple, replica: jax.Array | None, args: tuple, kwargs: dict
    ) -> tuple[PyTree, dict[Any, PyTree]]:
        del values, replica
        return self.function.value(*args, **kwargs), {}


class FunctionView:
    """A function is a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise TypeError(f"{type(function).__name__} cannot be called; give a Flax module or a function.")
        hidden = _hidden_module(function)
        if hidden is not None:
            raise TypeError(
                f"{getattr(function, '__qualname__', function)!r} holds the NNX module "
                f"{type(hidden).__name__}; "
                "its arrays would be frozen into the compiled program. Pass the module itself (give it a "
                "__call__), so that jaxpar sees its variables."
            )
        self.definition = FunctionDefinition(Static(function))

    def values(self, placement: Placement) -> tuple:
        del placement
        return ()

    def commit(self, changes: dict[Any, PyTree]) -> None:
        del changes


def _hidden_module(function: Any) -> nnx.Module | None:
    held = [
        getattr(function, "__self__", None),
        *getattr(function, "args", ()),
        getattr(function, "func", None),
    ]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    return next((h for h in held if isinstance(h, nnx.Module)), None)
