"""Gradients: values that are assigned, returned or stored under `torch.no_grad()` carry none.

JAX has no such context; each value that leaves it is wrapped in `jax.lax.stop_gradient`.
"""

from __future__ import annotations

import ast

import torch

from .context import Context
from .expressions import spliced, translated
from .fragment import Fragment, Hole

NO_GRAD = ("no_grad", "inference_mode")
STOPS = "gradients stop here"


def value_of(ctx: Context, node: ast.AST) -> Fragment:
    """Translate a value that is assigned, stored or returned."""
    if ctx.stops and isinstance(node, ast.Tuple):
        return spliced(ctx, node, lambda part: value_of(ctx, part))
    return stopped(ctx, node, translated(ctx, node))


def stopped(ctx: Context, node: ast.AST, fragment: Fragment) -> Fragment:
    """Stop the gradient of a computed value; names and attributes keep theirs."""
    # Where a name was assigned, outside or inside of the context, decides about its gradient.
    if not ctx.stops or isinstance(node, ast.Name | ast.Attribute | ast.Constant):
        return fragment
    return Fragment(f"jax.lax.stop_gradient({fragment.text})") if _carries(ctx, node) else fragment


def _carries(ctx: Context, node: ast.AST) -> bool:
    """Return whether a value can have a gradient."""
    site = ctx.site(node)
    if site is None:
        return True
    floating = any(dtype.is_floating_point for dtype in site.types)
    return floating or any(issubclass(kind, tuple | list | dict) for kind in site.kinds - {torch.Size})


def require_no_changes(ctx: Context, node: ast.stmt) -> None:
    """Refuse changes of a local array in place under `no_grad`: in torch they keep its earlier gradient."""
    if not ctx.stops:
        return
    if isinstance(node, ast.AugAssign):
        target: ast.expr = node.target
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        target = node.value.func
        if not (isinstance(target, ast.Attribute) and is_in_place(target.attr)):
            return
    else:
        return
    while isinstance(target, ast.Subscript | ast.Call | ast.Attribute):
        if isinstance(target, ast.Attribute) and ctx.is_module(target.value):
            return
        target = target.func if isinstance(target, ast.Call) else target.value
    # Probes record values that are read, not targets, so any variable of the target's name counts.
    names = (child for child in ast.walk(ctx.source.tree) if isinstance(child, ast.Name))
    if isinstance(target, ast.Name) and any(n.id == target.id and ctx.is_tensor(n) for n in names):
        raise Hole(STOPS)


def is_in_place(name: str) -> bool:
    """Return whether a method changes its tensor, by torch's convention for names."""
    return name.endswith("_") and not name.endswith("__")


def stops_gradients(ctx: Context, node: ast.expr) -> bool:
    """Return whether a context or a decorator is `torch.no_grad()`."""
    value = ctx.scope.value(node.func if isinstance(node, ast.Call) else node)
    return getattr(value, "__name__", "") in NO_GRAD and str(value.__module__).startswith("torch.")
