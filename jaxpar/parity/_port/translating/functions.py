"""Functions: `forward` becomes `__call__`, and an argument for random numbers is added where it is needed."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from types import FunctionType

from ..reading.runtime import Beyond, of_runtime
from ..reading.scope import UNKNOWN, defined_by_user, is_torchs
from ..reading.source import Function, end_of, start_of
from .blocks import begin_of, block, statement
from .context import Context
from .expressions import positioned, text
from .gradients import stops_gradients
from .memory import returned_by, taken_by
from .omitted import is_docstring

CACHES = (functools.cache, functools.lru_cache, functools.cached_property)


@statement(ast.FunctionDef)
def function(ctx: Context, node: Function, rngs: str = "") -> str:
    """Write a function; `rngs` is the type of its argument for random numbers, "" without one."""
    inner = ctx.inside(node)
    if any(stops_gradients(ctx, expression) for expression in node.decorator_list):
        inner = inner.stopping()
    value = ctx.scope.value(ast.Name(node.name, ast.Load()))
    unchanged = isinstance(value, FunctionType) and ctx.source.function(value.__code__) is node
    decorators = [
        decorator(ctx, expression)
        for expression in node.decorator_list
        if not (unchanged and registers(ctx, expression)) and not _keeps_arguments(ctx, node)
    ]
    indent = " " * node.col_offset
    head = "".join(f"@{written}\n{indent}" for written in decorators if written) + _head(ctx, node, rngs)
    body = _body(inner, node)
    # Whether a variable is unbound only shows once the statements that assign it may have been left out.
    if names := _unbound(node, body):
        body = _body(dataclasses.replace(inner, unbound=names), node)
    return head + body


def _keeps_arguments(ctx: Context, node: Function) -> bool:
    """Return whether a constructor's decorator keeps the arguments, for which the file has a line."""
    return ctx.kind in ctx.watched.kept_arguments and node.name == "__init__" and bool(node.decorator_list)


def _head(ctx: Context, node: Function, rngs: str) -> str:
    """Write `def f(x, *, rngs):` up to the first statement."""
    written, at = "", start_of(node)
    added = [*taken_by(ctx, node), *[f"rngs: {rngs}"] * bool(rngs)]
    last = _last_parameter(node) if added else None
    for part in head_parts(node):
        before = ctx.source.between(at, start_of(part))
        at = end_of(part)
        try:
            written += before + text(ctx, part)
        except Beyond:  # the annotation of what it returns
            written += before.rpartition("->")[0].rstrip()
        if part is last:
            written += _more_parameters(node, added)
    written += ctx.source.between(at, begin_of(node.body[0]))
    # Only a function without any parameter has no part after which one could be added.
    if rngs and last is None:
        written = written.replace("()", "(*, rngs)", 1)
    if ctx.kind is not None and node.name == "forward":
        written = re.sub(r"^(\s*(?:async )?def )forward\b", r"\1__call__", written)
    return written


def head_parts(node: Function | ast.ClassDef) -> list[ast.AST]:
    """Return the parts between `def` or `class` and the first statement, in order."""
    parts = (part for part in positioned(node) if not isinstance(part, ast.stmt))
    return sorted((part for part in parts if part not in node.decorator_list), key=start_of)


def _last_parameter(node: Function) -> ast.AST | None:
    """Return the last part of a function's parameters before `**kwargs`."""
    a = node.args
    parts = [*a.posonlyargs, *a.args, *a.defaults, a.vararg, *a.kwonlyargs, *a.kw_defaults]
    return max((part for part in parts if part is not None), key=end_of, default=None)


def _more_parameters(node: Function, added: list[str]) -> str:
    a = node.args
    if not any(argument.annotation for argument in [*a.args, *a.kwonlyargs]):
        added = [parameter.partition(":")[0] for parameter in added]
    star = "" if a.vararg or a.kwonlyargs else "*, "
    return f", {star}{', '.join(added)}"


def _body(ctx: Context, node: Function) -> str:
    """Write a function's statements, after lines that transpose images with their channels last."""
    names = ctx.needs.turned.get(node, ())
    docstring = node.body[: int(bool(names) and is_docstring(node.body[0]))]
    lines = [f"{name} = jnp.moveaxis({name}, -1, 1)  # from [N, H, W, C]" for name in names]
    before = [block(ctx, docstring)] if docstring else []
    if ctx.kind and _keeps_arguments(ctx, node):
        ctx.needs.stand_ins["ConstructorArguments"] = None
        values = ", ".join(f"{name.arg}={name.arg}" for name in [*node.args.args[1:], *node.args.kwonlyargs])
        lines.append(f"self.{ctx.watched.kept_arguments[ctx.kind]} = ConstructorArguments({values})")
    statements = block(ctx, node.body[len(docstring) :], last=True)
    returned = returned_by(ctx, node)
    after = [f"return {returned}"] if returned else []
    return f"\n{' ' * node.body[0].col_offset}".join([*before, *lines, statements, *after])


def registers(ctx: Context, node: ast.expr) -> bool:
    """Return whether a decorator that returns what it decorates is a function of the user's."""
    value = ctx.scope.value(node.func if isinstance(node, ast.Call) else node)
    return isinstance(value, FunctionType) and defined_by_user(value)


def decorator(ctx: Context, node: ast.expr) -> str | None:
    value = ctx.scope.value(node.func if isinstance(node, ast.Call) else node)
    if of_runtime(value):
        ctx.needs.note(f"left out: @{ctx.source.segment(node).partition('(')[0]}")
        return None
    if any(value is cache for cache in CACHES) and any(
        map(ctx.in_call, getattr(ctx.source.parents[node], "body", ()))
    ):
        # An array that one compiled program computes is of no use in the next.
        return "property" if value is functools.cached_property else None
    return None if value is not UNKNOWN and is_torchs(value) else text(ctx, node)


def _unbound(node: Function, written: str) -> frozenset[str]:
    """Return the variables that the written body reads and that only torch's function assigns."""
    indent = " " * node.body[0].col_offset
    head = "async def f():" if isinstance(node, ast.AsyncFunctionDef) else "def f():"
    body = ast.parse(f"{head}\n{indent}{written.strip()}")
    parameters = {child.arg for child in ast.walk(node.args) if isinstance(child, ast.arg)}
    return frozenset(_names(body, ast.Load) & _names(node, ast.Store) - _names(body, ast.Store) - parameters)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    nodes = (child for child in ast.walk(node) if isinstance(child, ast.Name))
    return {name.id for name in nodes if isinstance(name.ctx, context)}
