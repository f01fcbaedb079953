"""Gradients: values that are assigned, returned or stored under `torch.no_grad()` carry none.

JAX has no such context; each value that leaves it is wrapped in `jax.lax.stop_gradient`.
"""

from __future__ import annotations

import ast

import torch

from ..reading.source import Function
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
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _ends_in_place(node.value.func):
        target = node.value.func
    else:
        return
    while isinstance(target, ast.Subscript | ast.Call | ast.Attribute):
        if isinstance(target, ast.Attribute) and ctx.is_module(target.value):
            return
        target = target.func if isinstance(target, ast.Call) else target.value
    if isinstance(target, ast.Name) and _is_tensor_somewhere(ctx, target.id):
        raise Hole(STOPS)


def _ends_in_place(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and func.attr.endswith("_")


def _is_tensor_somewhere(ctx: Context, name: str) -> bool:
    """Return whether a variable of this name is a tensor anywhere in the file."""
    nodes = (node for node in ast.walk(ctx.source.tree) if isinstance(node, ast.Name) and node.id == name)
    return any(map(ctx.is_tensor, nodes))


def stops_gradients(ctx: Context, node: ast.expr) -> bool:
    """Return whether a context or a decorator is `torch.no_grad()`."""
    value = ctx.scope.value(node.func if isinstance(node, ast.Call) else node)
    return getattr(value, "__name__", "") in NO_GRAD and str(value.__module__).startswith("torch.")


def is_decorated(ctx: Context, node: Function) -> bool:
    return any(stops_gradients(ctx, decorator) for decorator in node.decorator_list)
