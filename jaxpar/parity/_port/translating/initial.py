"""Initial values: statements that only set them are left out, because torch's weights are copied."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from .. import rules
from ..reading.runtime import library_name
from ..reading.scope import UNKNOWN, dotted
from .context import Context

INITIAL = re.compile(r"(uniform|normal|zero|fill|copy|constant|trunc_normal|kaiming\w*|xavier\w*)_$")
"""Methods that set a parameter's initial value."""
_EXAMINED: set[FunctionType] = set()
"""Functions under examination, to end recursion."""


def note_initial_values(ctx: Context, node: ast.stmt) -> None:
    """Note that initial values are left out, if a silent statement sets any."""
    calls = (child.func for child in ast.walk(node) if isinstance(child, ast.Call))
    if any("init" in dotted(ctx.scope.value(func)) or INITIAL.search(_name_of(func)) for func in calls):
        ctx.needs.note_initial_values()


def is_silent(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only sets initial values, or registers something with torch."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _is_silent_call(ctx, node.value)
    if isinstance(node, ast.If):
        return _all_silent(ctx, [*node.body, *node.orelse])
    if isinstance(node, ast.For | ast.With):
        return _all_silent(ctx, node.body)
    if isinstance(node, ast.Assign):
        return all(map(_is_data, node.targets))
    return isinstance(node, ast.Pass)


def _all_silent(ctx: Context, body: Sequence[ast.stmt]) -> bool:
    """Return whether all statements are silent or set local variables for those that are."""
    silent = [is_silent(ctx, statement) for statement in body]
    return any(silent) and all(
        map(_is_local, (s for s, quiet in zip(body, silent, strict=True) if not quiet))
    )


def _is_local(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)


def _is_data(target: ast.expr) -> bool:
    """Return whether a target is `m.weight.data` or `m.weight.data[i]`."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and target.attr == "data"


def _is_silent_call(ctx: Context, node: ast.Call) -> bool:
    value = ctx.scope.value(node.func)
    if value is not UNKNOWN and dotted(value).startswith(rules.SILENT):
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "apply" and ctx.is_module(node.func.value):
        return True
    if INITIAL.search(node.func.attr):
        return _is_of_parameter(ctx, node.func.value)
    return _is_silent_method(ctx, node.func)


def _is_of_parameter(ctx: Context, node: ast.expr) -> bool:
    """Return whether a tensor is a parameter, a part of one, or the `data` of either."""
    data = False
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        data |= isinstance(node, ast.Attribute)
        node = node.value
    if data and isinstance(node, ast.Attribute) and not ctx.in_call(node):
        return True
    site = ctx.site(node)
    if site is None:
        return isinstance(node, ast.Attribute) and node.attr in ("weight", "bias")
    return bool(site.kinds) and all(issubclass(kind, nn.Parameter) for kind in site.kinds)


def _is_silent_method(ctx: Context, func: ast.Attribute) -> bool:
    """Return whether a user's method only sets initial values."""
    site = ctx.site(func)
    functions = list(site.objects.values()) if site else []
    if not functions:
        return False
    return (
        all(library_name(function) in rules.LIBRARY_SILENT for function in functions)
        or all(dotted(function).startswith(rules.SILENT) for function in functions)
        or all(gives_initial_values(ctx, function) for function in functions)
    )


def gives_initial_values(ctx: Context, function: Any) -> bool:
    if not isinstance(function, FunctionType) or function.__name__ in ("forward", "__init__"):
        return False
    node = ctx.source.function(function.__code__)
    if node is None or function.__code__.co_filename != ctx.source.path:
        return False
    if function in _EXAMINED:
        return True  # it calls itself
    _EXAMINED.add(function)
    try:
        inner = ctx.inside(node)
        body = [statement for statement in node.body if not is_docstring(statement)]
        return bool(body) and all(is_silent(inner, statement) for statement in body)
    finally:
        _EXAMINED.discard(function)


def is_docstring(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
