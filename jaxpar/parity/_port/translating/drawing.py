"""Drawing: which functions and classes of the user draw random numbers when they are called, as dropout does.

A class that draws keeps a stream of its own, as `nnx.Dropout` does. A function is given that of its caller.
"""

from __future__ import annotations

import ast
import functools
import inspect
from types import FunctionType, MethodType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ..reading.scope import defined_by_user, definition
from ..reading.source import Function, Source

STREAM = "self.rngs = rngs.dropout.fork()"
_DRAWS: WeakKeyDictionary[FunctionType, bool] = WeakKeyDictionary()


class Reader(Protocol):
    """Whoever reads calls: in another file or class, inside of a definition."""

    def at(self, source: Source, globals: dict[str, Any], kind: type | None = None) -> Reader: ...

    def inside(self, function: ast.AST) -> Reader: ...

    def call_draws(self, node: ast.Call) -> bool: ...


def draws(there: Reader, target: Any) -> bool:
    """Whether a function of the user must be given a stream; a method of a module has the module's."""
    if isinstance(target, functools.partial):
        return draws(there, target.func)
    if isinstance(target, MethodType) or not defined_by_user(target) or inspect.isclass(target):
        return False
    function = inspect.unwrap(target)
    known = _DRAWS.get(function)
    if known is None:
        _DRAWS[function] = False  # for those that call themselves
        source, node = definition(function)
        _DRAWS[function] = known = _any(there.at(source, function.__globals__), node)
    return known


def draws_itself(there: Reader, kind: type | None) -> bool:
    """Whether the methods of a class draw, without those of its base classes."""
    if kind is None or not defined_by_user(kind):
        return False
    source, node = definition(kind)
    inside = [each for each in node.body if isinstance(each, Function)]  # type: ignore[attr-defined]
    module = inspect.getmodule(kind)
    return any(_any(there.at(source, vars(module), kind), each) for each in inside)


def draws_first(there: Reader, kind: type | None) -> bool:
    """Whether a class draws, and none of its base classes."""
    bases = kind.__mro__[1:] if kind else ()
    return draws_itself(there, kind) and not any(draws_itself(there, each) for each in bases)


def _any(there: Reader, node: ast.AST) -> bool:
    here = there.inside(node)
    return any(isinstance(each, ast.Call) and here.call_draws(each) for each in ast.walk(node))
