"""Pairs: `x.max(1)`, `x.sort()` and `x.topk(2)` return values and indices; in JAX these are two calls.

If only one is used, as in `x.max(1)[0]` or `_, i = x.max(1)`, that one is written. If both are, the tensor
must be a name, so that nothing is computed twice.
"""

from __future__ import annotations

import ast
from typing import Any

from ..rules import PAIRS
from .context import Context
from .expressions import argument, by_rule, name_of, text
from .fragment import Fragment, Hole

FIELDS = {0: "values", 1: "indices", -1: "indices"}
BOTH = "it gives values and places"


def is_pair(ctx: Context, node: ast.Call) -> bool:
    """Return whether a call of `max`, `min`, `sort` or `topk` returns values and indices."""
    if f"{name_of(node.func)}.values" not in PAIRS:
        return False
    site = ctx.site(node)
    return bool(site and site.kinds and all(kind.__module__ == "torch.return_types" for kind in site.kinds))


def chosen(ctx: Context, node: ast.expr, field: str) -> Fragment | None:
    """Write the values or the indices of a call; None for any other expression."""
    parts = _parts(ctx, node)
    if parts is None:
        return None
    name, owner, call = parts
    if name == "topk" and not _is_along_last(ctx, owner, call):
        raise Hole("jax.lax.top_k looks along the last axis alone")
    return by_rule(ctx, call, PAIRS[f"{name}.{field}"], f"the {field} of {name}", owner)


def assigned_pair(ctx: Context, node: ast.Assign) -> str | None:
    """Write `values, indices = x.max(1)`; None for any other assignment."""
    target, parts = node.targets[0], _parts(ctx, node.value)
    if not (isinstance(target, ast.Tuple) and len(target.elts) == 2) or parts is None:
        return None
    assigned = {
        text(ctx, element): chosen(ctx, node.value, FIELDS[index])
        for index, element in enumerate(target.elts)
        if not (isinstance(element, ast.Name) and element.id == "_")
    }
    targets, values = ", ".join(assigned), [field.text for field in assigned.values() if field]
    name, owner, _ = parts
    if len(values) > 1 and name == "topk":  # `jax.lax.top_k` computes both
        return f"{targets} = {values[0].removesuffix('[0]')}"
    if len(values) > 1 and not isinstance(owner, ast.Name):
        raise Hole(f"{BOTH}; with a name for the tensor it can be said")
    return f"{targets} = {', '.join(values)}"


def _is_along_last(ctx: Context, owner: ast.expr, call: ast.Call) -> bool:
    axis_node = argument(call, 1, "dim")
    if axis_node is None:
        return True
    site, axis = ctx.site(owner), literal(axis_node)
    return axis == -1 or bool(site and site.axes and all(axes - 1 == axis for axes in site.axes))


def _parts(ctx: Context, node: ast.expr) -> tuple[str, ast.expr, ast.Call] | None:
    """Return the function's name, the tensor, and the call without the tensor."""
    if not isinstance(node, ast.Call) or not is_pair(ctx, node):
        return None
    func = node.func
    if isinstance(func, ast.Attribute) and ctx.is_tensor(func.value):
        return func.attr, func.value, node
    call = ast.copy_location(ast.Call(func, node.args[1:], node.keywords), node)
    return (name_of(node.func), node.args[0], call) if node.args else None


def literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
