"""Registries: objects of a library that return a class or function for a key, as `Conv[Conv.CONV, 2]`.

A constructor's choice is written as the class itself. A line that chooses several has a dict of these.
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
    """Write what a registry returned in the constructor; None for any other subscript."""
    owner = ctx.scope.registry(node.value)
    if owner is None or ctx.in_call(node):
        return None
    site = ctx.site(node)
    if site is None:
        raise Beyond(ctx.code(node.value))
    values = list(site.objects.values())
    if not values or not all(inspect.isclass(x) or isinstance(x, FunctionType) for x in values):
        return None
    if len(values) == 1:
        return Fragment(reference(ctx, node, values[0], values[0].__name__).text)
    entries = {key: value for key in _keys(ctx, node) if (value := _looked_up(owner, key)) in values}
    if {id(value) for value in entries.values()} != site.objects.keys():
        return None
    items = [f"{key!r}: {reference(ctx, node, x, x.__name__).text}" for key, x in entries.items()]
    return Fragment(f"{{{', '.join(items)}}}[{text(ctx, node.slice)}]")


def _keys(ctx: Context, node: ast.Subscript) -> list[Any]:
    """Return all keys of the texts and integers that the parts of the index were."""
    parts = per_axis(node.slice)
    sites = [ctx.site(part) for part in parts]
    values = [
        [part.value] if isinstance(part, ast.Constant) else sorted(site.literals, key=repr) if site else []
        for part, site in zip(parts, sites, strict=True)
    ]
    return [key if isinstance(node.slice, ast.Tuple) else key[0] for key in itertools.product(*values)]


def _looked_up(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except Exception:  # a combination of texts and numbers that never occurred
        return None
