"""Drawing: which of the user's functions and classes draw random numbers when called, as dropout does.

A class that draws has its own stream, as `nnx.Dropout` does. A function takes its caller's.
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
    """Interface for resolving calls in a different file, class or function."""

    def at(self, source: Source, globals: dict[str, Any], kind: type | None = None) -> Reader: ...

    def inside(self, function: ast.AST) -> Reader: ...

    def call_draws(self, node: ast.Call) -> bool: ...


def draws(reader: Reader, target: Any) -> bool:
    """Return whether a user's function needs a stream argument; a method uses its module's stream."""
    if isinstance(target, functools.partial):
        return draws(reader, target.func)
    if isinstance(target, MethodType) or not defined_by_user(target) or inspect.isclass(target):
        return False
    function = inspect.unwrap(target)
    drawing = _DRAWS.get(function)
    if drawing is None:
        _DRAWS[function] = False  # ends recursion
        source, node = definition(function)
        _DRAWS[function] = drawing = _any(reader.at(source, function.__globals__), node)
    return drawing


def draws_itself(reader: Reader, kind: type | None) -> bool:
    """Return whether a class's own methods draw, ignoring base classes."""
    if kind is None or not defined_by_user(kind):
        return False
    source, node = definition(kind)
    methods = [statement for statement in node.body if isinstance(statement, Function)]  # type: ignore[attr-defined]
    module = inspect.getmodule(kind)
    return any(_any(reader.at(source, vars(module), kind), method) for method in methods)


def draws_first(reader: Reader, kind: type | None) -> bool:
    """Return whether a class draws and none of its base classes do."""
    bases = kind.__mro__[1:] if kind else ()
    return draws_itself(reader, kind) and not any(draws_itself(reader, base) for base in bases)


def _any(reader: Reader, node: ast.AST) -> bool:
    inner_reader = reader.inside(node)
    return any(isinstance(child, ast.Call) and inner_reader.call_draws(child) for child in ast.walk(node))
