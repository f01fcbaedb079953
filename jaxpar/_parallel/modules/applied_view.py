"""Functions with parameters as their first argument, and pytrees that are called, such as Equinox modules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._tree import check_alive, combine, has_shape, is_staged, paths, separate
from ..._typing import PyTree, Static
from ..placement import Placement
from ..spread import spread, staged
from .function_view import FunctionDefinition, FunctionView


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """A function whose first argument is its parameters, any tree of arrays, with these."""

    function: Callable[..., Any]
    parameters: PyTree

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        return self.function(self.parameters, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Code:
    """A function and its parameters without their arrays; the function is None for a callable pytree."""

    function: Static
    statics: tuple[Static | None, ...]
    form: Static


class AppliedView(FunctionView):
    """`function(tree, *args)`, or `tree(*args)` with the function None; the values are the tree's arrays."""

    def __init__(self, function: Callable[..., Any] | None, tree: PyTree):
        super().__init__(tree if function is None else function)
        tree = tree if function is None else with_arrays(tree)
        self.arrays, statics, form = separate(tree)
        self.definition = FunctionDefinition(Static(_Code(Static(function), statics, Static(form))), _bound)
        root = "module" if function is None else "parameters"
        pairs = zip(paths(tree, root), statics, strict=True)
        self.names = [name for name, static in pairs if static is None]

    def values(self, placement: Placement, function: str = "DataParallel") -> list:  # type: ignore[override]
        check_alive(self.arrays, self.names, function)
        if is_staged():
            return staged(self.arrays, placement)
        return spread(self.arrays, self.names, placement, function)


def _bound(code: _Code, arrays: list) -> Callable[..., Any]:
    tree = combine(arrays, code.statics, code.form.value)
    return tree if code.function.value is None else functools.partial(code.function.value, tree)


def is_callable_pytree(x: object) -> bool:
    """Whether x can be called, and has arrays among its leaves."""
    if not callable(x) or isinstance(x, type):
        return False
    leaves = jax.tree.leaves(x)
    return any(map(has_shape, leaves)) and not any(leaf is x for leaf in leaves)


def is_transform(x: object) -> bool:
    """Whether x is what `haiku.transform` returns: two functions, init and apply."""
    return isinstance(x, tuple) and getattr(x, "_fields", ()) == ("init", "apply")


def function_of(module: Any) -> Any:
    """Return the function `apply` of a Haiku transform, and anything else unchanged."""
    return module.apply if is_transform(module) else module


def with_arrays(parameters: PyTree) -> PyTree:
    """Return parameters with an array for every Python float in dicts, lists and tuples.

    `jax.grad` differentiates those. A float on an object, such as a dropout's rate, is a constant.
    """

    def convert(x: Any) -> Any:
        # By NumPy, so that it gets a type of its own and not a weak one, which the first update would change.
        return jnp.asarray(np.asarray(x)) if isinstance(x, (float, complex, np.generic)) else x

    return jax.tree.map(convert, parameters, is_leaf=lambda x: not isinstance(x, (dict, list, tuple)))
