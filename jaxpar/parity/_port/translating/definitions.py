"""Definitions: a user's classes and functions, without the members that are left out."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from torch import nn

from ..reading.runtime import Beyond, for_runtime, is_beyond, of_library, of_runtime
from ..reading.scope import Scope, definition
from ..reading.source import Function, Source, defined, end_of, start_of
from ..reading.watching import Watched
from .drawing import STREAM, draws, draws_first
from .needs import Needs
from .statements import DELETED, MODE, Statements, begins, blocks, head_parts, reads_training_first

RNGS = "nnx.Rngs"
EMPTY = '"""Not ported, for the example does not run it."""'


def takes_rngs(value: Any, watched: Watched) -> bool:
    """Return whether a user's class or function takes `rngs` in the written file."""
    source, _ = definition(value)
    translator = Statements(source, watched, Scope(dict(vars(sys.modules[value.__module__]))), Needs())
    return translator.needs_rngs(value)


def function_text(value: FunctionType, source: Source, node: Function, watched: Watched, needs: Needs) -> str:
    value = inspect.unwrap(value)
    translator = Statements(source, watched, Scope(value.__globals__), needs)
    if translator.needs_rngs(value):
        return translator.function(node, RNGS)
    return translator.function(node, "nnx.RngStream" if draws(translator, value) else "")


def class_text(value: type, source: Source, node: ast.ClassDef, watched: Watched, needs: Needs) -> str:
    """Write a class without the methods that did not run.

    A class that is not a module has all methods without holes, even if they did not run.
    """
    kind = value if issubclass(value, nn.Module) else None
    translator = Statements(source, watched, Scope(dict(vars(sys.modules[value.__module__]))), needs, kind)
    written: list[str] = []
    after: ast.stmt | None = None
    for statement, text in _members(translator, value, node):
        if text == DELETED:
            continue
        separated = isinstance(statement, Function) or isinstance(after, Function)
        written.append(("\n" if separated and after is not None else "") + text)
        after = statement
    line = "\n" + " " * node.body[0].col_offset
    return _head(translator, node) + (
        line.join(written).replace(f"{line}\n", f"\n{line}") or (EMPTY if kind else "pass")
    )


def _of_runtime(translator: Statements, node: ast.stmt) -> bool:
    """Return whether a class attribute is a part of a library that did not run."""
    value = translator.scope.value(node.value) if isinstance(node, ast.Assign) else None
    return of_library(value) and is_beyond(value, translator.watched)


def _members(translator: Statements, value: type, node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """Yield a class's statements; additions for a missing constructor follow the docstring."""
    documented = ast.get_docstring(node) is not None
    added = [] if "__init__" in vars(value) else [*_state(translator, value, node)]
    yield from [(node.body[0], translator.statement(node.body[0]))] if documented else []
    yield from added
    for statement in node.body[documented:]:
        if any(for_runtime(value, name) for name in defined(statement)) or _of_runtime(translator, statement):
            continue
        yield (
            statement,
            _method(translator, value, statement)
            if isinstance(statement, Function)
            else translator.statement(statement),
        )


def _state(translator: Statements, value: type, node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the mode as a class attribute, or a constructor that makes a random stream."""
    mode = [MODE] if reads_training_first(translator.kind) else []
    if draws_first(translator, translator.kind) and value.__init__ is nn.Module.__init__:  # type: ignore[misc]
        indent = "\n" + " " * (2 * node.body[0].col_offset)
        head = f"def __init__(self, *, rngs: {RNGS}):"
        yield ast.parse(f"{head} ...").body[0], indent.join([head, *mode, STREAM])
    elif mode:
        yield ast.Pass(), MODE.removeprefix("self.")


def _head(translator: Statements, node: ast.ClassDef) -> str:
    """Write `class Net(nnx.Module):` up to its first statement."""
    written, at = "", start_of(node)
    parts = head_parts(node)
    values = [translator.scope.value(part) for part in parts]
    if any(of_library(value) and is_beyond(value, translator.watched) for value in values):
        bases = [
            translator.text(p)
            for p, v in zip(parts, values, strict=True)
            if not is_beyond(v, translator.watched)
        ]
        written, parts, at = f"class {node.name}({', '.join(bases)}", [], end_of(parts[-1])
    for part in parts:
        written += translator.source.between(at, start_of(part)) + translator.text(part)
        at = end_of(part)
    decorators_ = [_decorated(translator, node, decorator) for decorator in node.decorator_list]
    decorators = "".join(f"@{decorator}\n" for decorator in decorators_ if decorator)
    return decorators + written + translator.source.between(at, begins(node.body[0]))


def _decorated(translator: Statements, node: ast.ClassDef, decorator: ast.expr) -> str | None:
    """Write a class's decorator; a library's output classes become trees of arrays."""
    is_dataclass = translator.scope.value(decorator) is dataclasses.dataclass
    if is_dataclass and any(of_runtime(translator.scope.value(base)) for base in node.bases):
        return "struct.dataclass"
    return translator.decorator(decorator)


def _method(translator: Statements, value: type, node: Function) -> str:
    function = function_in(value, node.name)
    if function is None or translator.source.function(function.__code__) is not node:
        return DELETED  # an overload, or what a decorator has replaced
    name = f"{value.__name__}.{node.name}"
    if translator.kind is None:
        return _whole(translator, node, name)
    if translator.gives_initial_values(function):
        return DELETED
    if not ran(translator, node):
        translator.needs.note(f"{name} is not ported: the example does not run it")
        return DELETED
    return translator.function(
        node, RNGS if node.name == "__init__" or translator.needs_rngs(function) else ""
    )


def _whole(translator: Statements, node: Function, name: str) -> str:
    """Write a method of a class that is not a module; it is left out if it has holes."""
    needs = translator.needs
    mark = needs.mark()
    try:
        text = translator.function(node)
        if needs.written_holes == mark[2]:
            return text
    except Beyond:
        pass
    needs.forget(mark)
    needs.note(f"{name} is not ported: it has no counterpart")
    return DELETED


def function_in(value: type, name: str) -> Any:
    """Return the plain function of a method, a property, a static or a class method."""
    function = vars(value).get(name)
    function = getattr(function, "__func__", getattr(function, "fget", function))
    function = inspect.unwrap(function) if callable(function) else function
    return function if isinstance(function, FunctionType) else None


def ran(translator: Statements, node: Function) -> bool:
    return any(
        (translator.source.path, statement.lineno) in translator.watched.lines for statement in node.body
    )


def not_run(source: Source, node: ast.AST, watched: Watched, say: Callable[[ast.stmt], None]) -> None:
    """Report the first statements of blocks that did not run although the code around them did."""
    for body in blocks(node):
        if isinstance(node, ast.ClassDef):
            pass
        elif (source.path, body[0].lineno) not in watched.lines:
            if not isinstance(node, Function) and not isinstance(body[0], ast.Raise):
                say(body[0])
            continue
        for statement in body:
            not_run(source, statement, watched, say)
