"""Branches: `if` and `assert`, and branches that are taken at random.

A branch that a random number decides raises in the ported file, unless its probability is zero.
"""

from __future__ import annotations

import ast

import torch

from ..reading.runtime import is_logger
from ..reading.scope import UNKNOWN
from .blocks import begin_of, dedented, statement, with_blocks
from .conditions import test
from .context import Context
from .expressions import translated


@statement(ast.If)
def branch(ctx: Context, node: ast.If) -> str | None:
    if is_logging(ctx, node):
        return None
    if written := _by_chance(ctx, node):
        return written
    refuses = all(isinstance(child, ast.Raise) for child in node.body) and not node.orelse
    if refuses and _is_unchecked(ctx, node, node.test):
        return None
    condition = test(ctx, node.test).value
    if condition is UNKNOWN:
        return with_blocks(ctx, node)
    chosen = node.body if condition else node.orelse
    return dedented(ctx, chosen, begin_of(node)[1]) if chosen else None


@statement(ast.Assert)
def assertion(ctx: Context, node: ast.Assert) -> str | None:
    return None if _is_unchecked(ctx, node, node.test) else with_blocks(ctx, node)


def _is_unchecked(ctx: Context, node: ast.stmt, condition: ast.expr) -> bool:
    """Return whether a check is left out: its condition has holes, which are forgotten."""
    if ctx.needs.without_holes(lambda: test(ctx, condition)):
        return False
    note_unchecked(ctx, node)
    return True


def note_unchecked(ctx: Context, node: ast.stmt) -> None:
    """Note that a check of numbers is left out: it changes no result, and JAX traces abstract arrays."""
    ctx.note(node, "what it checks depends on data; left out")


def is_logging(ctx: Context, node: ast.stmt) -> bool:
    """Return whether a statement only calls a library's logger."""
    if isinstance(node, ast.If):
        return not node.orelse and all(is_logging(ctx, child) for child in node.body)
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
    return all(_is_below(ctx, name) for name in names if isinstance(name.ctx, ast.Load))


def _is_below(ctx: Context, node: ast.AST) -> bool:
    """Return whether a name is on the left of `if x < p`, whose branch did not run."""
    condition = ctx.source.parents[node]
    parent = ctx.source.parents.get(condition)
    less = (
        isinstance(condition, ast.Compare) and condition.left is node and isinstance(condition.ops[0], ast.Lt)
    )
    return less and isinstance(parent, ast.If) and parent.test is condition and not ctx.ran(parent.body[0])


def _by_chance(ctx: Context, node: ast.If) -> str | None:
    """Write `if torch.rand([]) < p` that was never true, also in an `if`: raise if `p` is positive."""
    statements = [child for child in node.body if not is_drawn_for_chance(ctx, child)]
    alone = statements[0] if len(statements) == 1 < len(node.body) and not node.orelse else None
    outer = ""
    if isinstance(alone, ast.If):
        outer, node = f"{test(ctx, node.test).grouped} and ", alone
    if not _is_by_chance(ctx, node):
        return None
    assert isinstance(node.test, ast.Compare)
    reason = f"{ctx.source.place(node)}: {ctx.source.segment(node.test)}: it decides by random numbers"
    ctx.needs.note(f"raises where it is not zero: {reason}")
    ctx.needs.refused.add((ctx.source.path, node.body[0].lineno))
    chance = f"{translated(ctx, node.test.comparators[0]).grouped} > 0"
    indent = " " * (node.col_offset + 4)
    return f"if {outer}{chance}:\n{indent}raise NotImplementedError({reason!r})"


def _is_by_chance(ctx: Context, node: ast.If) -> bool:
    condition = node.test
    if node.orelse or not (isinstance(condition, ast.Compare) and isinstance(condition.left, ast.Name)):
        return False
    drawn = [
        child
        for child in ast.walk(ctx.source.around(node) or node)
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == condition.left.id
    ]
    return (
        bool(drawn)
        and _is_below(ctx, condition.left)
        and all(is_drawn_for_chance(ctx, child) for child in drawn)
    )
