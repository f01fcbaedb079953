"""Statements without a file of their own: imports, contexts, returns, and calls for their effects."""

from __future__ import annotations

import ast

import torch

from .. import rules
from ..reading.scope import dotted
from .assignments import KEEPS, is_kept
from .blocks import begin_of, dedented, statement, with_blocks
from .branches import is_logging, note_unchecked
from .conditions import test
from .constructors import registered_buffer, registered_parameter, super_init
from .context import Context
from .expressions import spliced, text
from .fragment import Hole
from .gradients import stops_gradients, value_of
from .indexing import PARTS, changed_in_place, is_in_place, rebound
from .methods import is_method

KEEPING = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault")


@statement(ast.Import)
def imported(ctx: Context, node: ast.Import) -> str | None:
    return None if all(map(_is_torch, (alias.name for alias in node.names))) else ctx.source.segment(node)


@statement(ast.ImportFrom)
def imported_from(ctx: Context, node: ast.ImportFrom) -> str | None:
    return None if _is_torch(node.module or "") else ctx.source.segment(node)


def _is_torch(module: str) -> bool:
    return module.split(".")[0] == "torch"


@statement(ast.With)
def with_statement(ctx: Context, node: ast.With) -> str | None:
    expressions = [item.context_expr for item in node.items]
    names = [dotted(ctx.scope.value(e.func)) if isinstance(e, ast.Call) else "" for e in expressions]
    column = begin_of(node)[1]
    if all(name in rules.CONTEXTS for name in names):
        return dedented(ctx, node.body, column)
    if len(expressions) == 1 and stops_gradients(ctx, expressions[0]):
        return dedented(ctx.stopping(), node.body, column)
    if any(name.startswith("torch.") for name in names):
        raise Hole("there is no rule for this context")
    return with_blocks(ctx, node)


@statement(ast.Return)
def returned(ctx: Context, node: ast.Return) -> str:
    if node.value and ctx.stops:
        return f"return {value_of(ctx, node.value).text}"
    return spliced(ctx, node).text


@statement(ast.Expr)
def call_statement(ctx: Context, node: ast.Expr) -> str | None:
    call = node.value
    if not isinstance(call, ast.Call):
        return text(ctx, call)
    if is_logging(ctx, node):
        return None
    if ctx.scope.value(call.func) is torch._assert:
        return _torch_assert(ctx, node, call)
    if (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Call)
        and call.func.attr == "__init__"
    ):
        return super_init(ctx, call)
    written = _method_statement(ctx, call, call.func) if isinstance(call.func, ast.Attribute) else None
    if written is None and (name := rebound(ctx, node)):
        written = f"{name} = {text(ctx, call)}"
    return written or text(ctx, call)


def _torch_assert(ctx: Context, node: ast.Expr, call: ast.Call) -> str | None:
    if ctx.is_tensor(call.args[0]):
        note_unchecked(ctx, node)
        return None
    message = f", {text(ctx, call.args[1])}" if len(call.args) > 1 else ""
    return f"assert {test(ctx, call.args[0]).text}{message}"


def _method_statement(ctx: Context, call: ast.Call, func: ast.Attribute) -> str | None:
    """Write a method's call that stores something; None for any other call."""
    name, owner = func.attr, ctx.site(func.value)
    if name == "register_buffer":
        return registered_buffer(ctx, call, func)
    if name == "register_parameter":
        return registered_parameter(ctx, call, func)
    if name.startswith("register_") and name.endswith("hook"):
        raise Hole("JAX has no hooks")
    if name in KEEPING and ctx.in_call(call) and is_kept(ctx, func.value):
        raise Hole(KEEPS)
    if is_in_place(name) and (owner.is_tensor if owner else is_method(name) or name in PARTS):
        return changed_in_place(ctx, call, func)
    return None


@statement(ast.Global)
def global_names(ctx: Context, node: ast.Global) -> str:
    raise Hole("it changes a variable of the file")


@statement(ast.Match)
def match(ctx: Context, node: ast.Match) -> str:
    raise Hole("there is no rule for match")


@statement(ast.ClassDef)
def local_class(ctx: Context, node: ast.ClassDef) -> str:
    raise Hole("a class inside of a function")
