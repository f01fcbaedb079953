"""Modules: an NNX module, a bound Linen module, a callable pytree or a plain function, in one form.

An `nnx.Param` (Linen: a collection that is not mutable) is a parameter; everything else is what torch calls a
buffer, of which replica 0's new value comes back (docs/semantics.md row 39). Attributes that a forward
rebinds are lost, as in torch (row 37).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import linen, nnx

from .definition import Changes as Changes
from .definition import Definition as Definition
from .function_view import Applied, AppliedView, ClosureView, FunctionView, is_callable_pytree, watched_cells
from .linen_view import LinenView
from .nnx_view import NNXView, view_nnx

Module = Callable[..., Any]


View = NNXView | LinenView | FunctionView
"""A module, split into the code that is compiled and the arrays."""


def view(module: Module) -> View:
    """Return the view of a module; for NNX, the cached one if the module has not changed since."""
    if isinstance(module, nnx.Module):
        return view_nnx(module)
    if isinstance(module, linen.Module):
        return LinenView(module)
    if isinstance(module, Applied):
        return AppliedView(module.function, module.parameters)
    if is_callable_pytree(module):
        return AppliedView(None, module)
    cells = watched_cells(module)
    return ClosureView(module, cells) if cells else FunctionView(module)
