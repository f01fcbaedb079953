"""Caches: entries that a module keeps between calls, `if key not in self.cache: self.cache[key] = value`.

A compiled program has no such memory: the value is computed in each call.
"""

from __future__ import annotations

import ast

from ..reading.source import Function
from .context import Context


def is_kept(ctx: Context, target: ast.expr) -> bool:
    """Return whether a list or dict is a module's attribute, which outlives the call."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and ctx.is_module(target.value)


def cached_in(ctx: Context, node: ast.AST) -> ast.Assign | None:
    """Return the assignment of a missing entry, if a statement does nothing else."""
    if not (isinstance(node, ast.If) and len(node.body) == 1 and not node.orelse):
        return None
    (assigned,), check = node.body, node.test
    if not (isinstance(assigned, ast.Assign) and isinstance(check, ast.Compare)):
        return None
    target = assigned.targets[0]
    if not (
        isinstance(target, ast.Subscript) and isinstance(check.ops[0], ast.NotIn) and is_kept(ctx, target)
    ):
        return None
    same = [ast.unparse(target.slice), ast.unparse(target.value)]
    return assigned if [ast.unparse(check.left), ast.unparse(check.comparators[0])] == same else None


def only_empties_caches(ctx: Context, node: Function) -> bool:
    """Return whether a method `train` does nothing but empty caches besides nn.Module's."""
    tree = ctx.source.tree
    assignments = filter(None, (cached_in(ctx, child) for child in ast.walk(tree)))
    caches = {
        ast.unparse(target.value)
        for assigned in assignments
        for target in assigned.targets
        if isinstance(target, ast.Subscript)
    }

    def empties(statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            return all(map(empties, [*statement.body, *statement.orelse]))
        if isinstance(statement, ast.Assign):
            return ast.unparse(statement.targets[0]) in caches
        written = ast.unparse(statement)
        return written.startswith("super().train(") or written in (
            "return self",
            "return super().train(mode)",
        )

    return node.name == "train" and all(map(empties, node.body))
