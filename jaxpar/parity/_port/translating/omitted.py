"""Omitted statements: initial values, because torch's weights are copied, and what JAX has no use for.

These are a library's log messages, variables that hold a device, registrations with torch, and the numbers
that only decide branches that are taken at random.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .. import rules
from ..reading.runtime import is_logger, library_name
from ..reading.scope import UNKNOWN, dotted
from .context import Context
from .expressions import name_of

INITIAL = re.compile(r"(uniform|normal|zero|fill|copy|constant|trunc_normal|kaiming\w*|xavier\w*)_$")
"""Methods that set a parameter's initial value."""
_EXAMINED: set[FunctionType] = set()
"""Functions under examination, to end recursion."""


def is_omitted(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement is left out; a note reports initial values."""
    if isinstance(node, ast.Pass):
        return False
    if not is_silent(ctx, node):
        return _is_logging(ctx, node) or is_drawn_for_chance(ctx, node) or _is_device(ctx, node)
    for func in (child.func for child in ast.walk(node) if isinstance(child, ast.Call)):
        if INITIAL.search(name_of(func)) or "init" in dotted(ctx.scope.value(func)):
            ctx.needs.note_initial_values()
    return True


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
    return any(silent) and all(one or _is_local(node) for one, node in zip(silent, body, strict=True))


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
    # `.data` outside of a call has no other use than to set values without recording a gradient.
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


def _is_logging(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only calls a library's logger."""
    if isinstance(node, ast.If):
        return not node.orelse and all(_is_logging(ctx, child) for child in node.body)
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and is_logger(ctx.scope.value(func.value))


def is_drawn_for_chance(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement draws a number that only conditions of branches use."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    call, target, function = node.value, node.targets[0], ctx.source.around(node)
    is_scalar = bool(call.args) and ctx.source.segment(call.args[0]) == "[]"
    if ctx.scope.value(call.func) is not torch.rand or not is_scalar:
        return False
    if function is None or not isinstance(target, ast.Name):
        return False
    names = (child for child in ast.walk(function) if isinstance(child, ast.Name) and child.id == target.id)
    return all(is_below(ctx, name) for name in names if isinstance(name.ctx, ast.Load))


def is_below(ctx: Context, node: ast.AST) -> bool:
    """Return whether a name is on the left of `if x < p`, whose branch did not run."""
    check = ctx.source.parents[node]
    parent = ctx.source.parents.get(check)
    less = isinstance(check, ast.Compare) and check.left is node and isinstance(check.ops[0], ast.Lt)
    return less and isinstance(parent, ast.If) and parent.test is check and not ctx.ran(parent.body[0])


def _is_device(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only assigns a device or its name to a variable."""
    site = ctx.site(node.value) if isinstance(node, ast.Assign) and _is_local(node) else None
    if not isinstance(node, ast.Assign) or site is None or not site.kinds <= {torch.device, str}:
        return False
    parts = (ctx.site(part) for part in ast.walk(node.value) if isinstance(part, ast.expr))
    return any(part_site.kinds == {torch.device} for part_site in parts if part_site)
