"""Functions: without parameters, closing over arrays, with parameters as first argument, or in a pytree."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._tree import check_alive, combine, has_shape, has_tracers, is_array, is_staged, paths, separate
from ..._typing import PyTree, Static
from ..placement import Placement
from ..spread import spread, staged
from .definition import Definition


@dataclasses.dataclass(frozen=True)
class FunctionDefinition(Definition):
    """A function without its values, with which `bind(function, values)` returns it."""

    function: Static
    bind: Callable[[Any, Any], Callable[..., Any]]

    def cast(self, values: PyTree, dtype: Any) -> PyTree:
        def converted(x: Any) -> Any:
            return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

        return jax.tree.map(converted, values)

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

    def values(self, placement: Placement, function: str = "DataParallel") -> tuple:
        del placement, function
        return ()

    def commit(self, changes: dict[Any, PyTree]) -> None:
        del changes


def refuse_hidden_module(value: object) -> None:
    # jit would take the module's arrays for constants: they would never be updated, and never be averaged.
    hidden = next((content for content in contents(value) if isinstance(content, nnx.Module)), None)
    if hidden is not None:
        raise TypeError(
            f"{getattr(value, '__qualname__', value)!r} holds the NNX module {type(hidden).__name__}; "
            "its arrays would be frozen into the compiled program. Use the module itself (give it a "
            "__call__), so that jaxpar sees its variables."
        )


def contents(value: object) -> list[Any]:
    """Return what a function closes over, or what is bound to it."""
    if isinstance(value, functools.partial):
        return [*value.args, *value.keywords.values(), *contents(value.func)]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if not isinstance(value, types.FunctionType):
        return []
    cells = []
    for cell in value.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            cells.append(cell.cell_contents)
    return cells


# JAX would refuse to mix an array that an eager derivative watches, on one device, with rows on several. So
# such arrays of a function, `lambda x: x @ w` under `jax.grad`, are data, like parameters.
Cells = dict[int, PyTree]


class ClosureView(FunctionView):
    """A function whose watched cells are its parameters."""

    def __init__(self, function: Callable[..., Any], cells: Cells):
        super().__init__(function)
        assert isinstance(function, types.FunctionType)
        # The program outlives the derivative, whose tracers it must not hold.
        emptied = _filled(function, dict.fromkeys(cells))
        self.definition = FunctionDefinition(Static(emptied), _filled)
        self.cells = cells

    def values(self, placement: Placement, function: str = "DataParallel") -> Cells:  # type: ignore[override]
        leaves, form = jax.tree.flatten(self.cells)
        names = ["an array of the function"] * len(leaves)
        return jax.tree.unflatten(form, spread(leaves, names, placement, function))


def watched_cells(function: object) -> Cells:
    """Return the closure's cells, by number, that hold only arrays, at least one of them watched."""
    if not isinstance(function, types.FunctionType) or is_staged():
        return {}
    contents: Cells = {}
    for i, cell in enumerate(function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            contents[i] = cell.cell_contents
    return {i: x for i, x in contents.items() if has_tracers(x) and all(map(is_array, jax.tree.leaves(x)))}


def _filled(function: types.FunctionType, values: Cells) -> types.FunctionType:
    closure = enumerate(function.__closure__ or ())
    cells = [types.CellType(values[i]) if i in values else cell for i, cell in closure]
    copied = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


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


def is_equinox_state(x: Any) -> bool:
    """Whether `x` is an eqx.nn.State; Equinox may not be installed."""
    return type(x).__module__ == "equinox.nn._stateful"


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
