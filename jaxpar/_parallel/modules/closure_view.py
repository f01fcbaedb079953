"""Functions that hold arrays which an eager derivative watches: `lambda x: x @ w` under `jax.grad`.

JAX would refuse to mix `w`, on one device, with rows on several. So such arrays are data, like parameters.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import jax

from ..._tree import has_tracers, is_array, is_staged
from ..._typing import PyTree, Static
from ..placement import Placement
from ..spread import spread
from .function_view import FunctionDefinition, FunctionView

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
