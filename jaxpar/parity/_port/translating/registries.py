"""Registries: objects of a library that return a class or function for a key, as `Conv[Conv.CONV, 2]`.

A constructor's choice is written as the class itself. A line that chooses several has a dict of these, as has
any line that reads a dict which decorators fill.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from types import FunctionType
from typing import Any

from ..reading.runtime import Beyond
from .context import Context
from .expressions import text
from .fragment import Fragment
from .indexing import per_axis
from .names import reference


def registered(ctx: Context, node: ast.Subscript) -> Fragment | None:
    """Write what a registry returned in the constructor, or a filled dict; None for any other subscript."""
    if filled := ctx.scope.filled(node.value):
        return _chosen(ctx, node, filled, node.slice)
    owner = ctx.scope.registry(node.value)
    if owner is None or ctx.in_call(node):
        return None
    values = _values(ctx, node)
    if len(values) == 1:
        return Fragment(reference(ctx, node, values[0], values[0].__name__).text)
    return _chosen(ctx, node, owner, node.slice)


def registered_by_get(ctx: Context, node: ast.Call) -> Fragment | None:
    """Write `filled.get(key)` of a dict that decorators fill; None for any other call."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "get" or not node.args:
        return None
    filled = ctx.scope.filled(node.func.value)
    return _chosen(ctx, node, filled, node.args[0]) if filled else None


def _values(ctx: Context, node: ast.expr) -> list[Any]:
    """Return the classes and functions that an expression was; none if it was anything else."""
    site = ctx.site(node)
    if site is None:
        raise Beyond(ctx.code(node))
    values = list(site.objects.values())
    return values if all(inspect.isclass(x) or isinstance(x, FunctionType) for x in values) else []


def _chosen(ctx: Context, node: ast.expr, owner: Any, index: ast.expr) -> Fragment | None:
    """Write a dict of what was chosen, and the index; None if the keys are not all recorded."""
    values = _values(ctx, node)
    entries = {key: value for key in _keys(ctx, index) if (value := _looked_up(owner, key)) in values}
    if not values or {id(value) for value in entries.values()} != {id(value) for value in values}:
        return None
    items = [f"{key!r}: {reference(ctx, node, x, x.__name__).text}" for key, x in entries.items()]
    return Fragment(f"{{{', '.join(items)}}}[{text(ctx, index)}]")


def _keys(ctx: Context, index: ast.expr) -> list[Any]:
    """Return all keys of the texts and integers that the parts of the index were."""
    parts = per_axis(index)
    sites = [ctx.site(part) for part in parts]
    values = [
        [part.value] if isinstance(part, ast.Constant) else sorted(site.literals, key=repr) if site else []
        for part, site in zip(parts, sites, strict=True)
    ]
    return [key if isinstance(index, ast.Tuple) else key[0] for key in itertools.product(*values)]


def _looked_up(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except Exception:  # a combination of texts and numbers that never occurred
        return None
