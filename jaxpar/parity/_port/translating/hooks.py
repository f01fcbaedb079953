"""Hooks: a constructor's `layer.register_forward_hook(hook)`, and the lists and dicts that hooks fill.

The written file replaces the layer's class by a subclass that calls the hook. What the hooks fill is one
object for all copies of a module, also under `nnx.jit`, and has no state.
"""

from __future__ import annotations

import ast
from collections import OrderedDict

import jax
import torch

from ..reading.source import Function
from .context import Context
from .expressions import text

STAND_INS = ("register_forward_hook", "register_forward_pre_hook")
FILLED: dict[type, str] = {dict: "FilledDict", OrderedDict: "FilledDict", list: "FilledList"}
EMPTY = ("{}", "[]", "dict()", "list()", "OrderedDict()", "collections.OrderedDict()")


def registration(ctx: Context, node: ast.expr) -> bool:
    """Return whether a constructor registers a hook, with nothing but the hook."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return False
    is_hook = node.func.attr in STAND_INS and len(node.args) == 1 and ctx.is_module(node.func.value)
    return is_hook and ctx.only_making(node)


def registered(ctx: Context, node: ast.Call) -> str | None:
    """Write a registration, also in `self.handles.append(layer.register_forward_hook(hook))`."""
    if getattr(node.func, "attr", "") == "append" and len(node.args) == 1:
        node = node.args[0]  # type: ignore[assignment]
    if not registration(ctx, node):
        return None
    assert isinstance(node.func, ast.Attribute)
    ctx.needs.stand_ins[node.func.attr] = None
    return f"{node.func.attr}({text(ctx, node.func.value)}, {text(ctx, node.args[0])})"


def fills(ctx: Context, target: ast.expr) -> bool:
    """Return whether a hook writes to a list or dict that is an attribute, for this call alone."""
    function = ctx.source.around(target)
    name = function.name if isinstance(function, Function) else "<lambda>"
    return name in ctx.watched.hook_names and not ctx.watched.remembers()


def filled(ctx: Context, target: ast.Attribute, value: ast.expr) -> str | None:
    """Return the class of an empty list or dict that hooks fill with arrays; None for any other.

    It is an attribute of a module, or of a plain object that a hook has as a variable.
    """
    site = ctx.site(target.value)
    if (
        not ctx.watched.hook_names
        or ast.unparse(value) not in EMPTY
        or not ctx.only_making(target)
        or not site
    ):
        return None
    owners = ctx.modules(target.value) or [x for x in ctx.watched.hook_owners if type(x) in site.kinds]
    values = [vars(owner).get(target.attr) for owner in owners]
    kinds = {type(x) for x in values}
    if len(kinds) != 1 or not kinds <= FILLED.keys():
        return None
    if not all(isinstance(x, torch.Tensor) for x in jax.tree.leaves(values)) or ctx.watched.remembers():
        return None
    kind = FILLED[kinds.pop()]
    ctx.needs.stand_ins[kind] = None
    ctx.needs.unread |= {(type(owner), target.attr) for owner in owners}
    return f"{kind}()"
