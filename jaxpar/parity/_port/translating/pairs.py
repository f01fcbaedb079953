"""Pairs: `x.max(1)`, `x.sort()` and others return several arrays, as functions of `jaxpar.nn` do.

A rule may have a shorter text for one of them alone, as in `x.max(1)[1]` or `_, i = x.max(1)`.
"""

from __future__ import annotations

import ast
from typing import Any

from ..rules import METHODS, PAIRS
from .context import Context
from .expressions import by_rule, name_of, text
from .fragment import Fragment

FIELDS = {0: "values", 1: "indices", -1: "indices"}


def pair(ctx: Context, node: ast.expr, field: str = "") -> Fragment | None:
    """Write a call that returns several arrays, or one of them; None for any other expression."""
    parts = _parts(ctx, node)
    if parts is None:
        return None
    name, owner, call = parts
    if field:
        candidates = PAIRS.get(f"{name}.{field}", [])
        return by_rule(ctx, call, candidates, name, owner) if candidates else None
    return by_rule(ctx, call, PAIRS[name], name, owner)


def assigned_field(ctx: Context, node: ast.Assign) -> str | None:
    """Write `_, indices = x.max(1)` as one assignment; None for any other."""
    target = node.targets[0]
    elements = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else []
    used = [i for i, element in enumerate(elements) if ast.unparse(element) != "_"]
    field = pair(ctx, node.value, FIELDS[used[0]]) if len(used) == 1 else None
    return f"{text(ctx, elements[used[0]])} = {field.text}" if field else None


def _parts(ctx: Context, node: ast.expr) -> tuple[str, ast.expr, ast.Call] | None:
    """Return the function's name, the tensor, and the call without the tensor."""
    if not isinstance(node, ast.Call) or (name := name_of(node.func)) not in PAIRS:
        return None
    func, site = node.func, ctx.site(node)
    if site and not all(kind.__module__ == "torch.return_types" for kind in site.kinds):
        return None
    if (
        isinstance(func, ast.Attribute)
        and (ctx.is_tensor(func.value) or ctx.site(func.value) is None)
        and not ast.unparse(func).startswith("torch.")
    ):
        owner, call = func.value, node
    elif node.args:
        owner = node.args[0]
        call = ast.copy_location(ast.Call(func, node.args[1:], node.keywords), node)
    else:
        return None
    # A call that did not run is one of several arrays if no rule for one array accepts it.
    if site is None and any(rule.accepts(call) for rule in METHODS.get(name, [])):
        return None
    return name, owner, call


def literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
