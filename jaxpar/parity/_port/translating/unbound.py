"""Unbound: variables of a function whose only assignments are in branches that were left out."""

from __future__ import annotations

import ast

from ..reading.source import Function


def unbound(function: Function, written: str) -> frozenset[str]:
    """Return the names that the written body reads and that only torch's function assigns.

    Args:
      function: torch's function.
      written: the ported body; all lines but the first have their indent.
    """
    indent = " " * function.body[0].col_offset
    head = "async def f():" if isinstance(function, ast.AsyncFunctionDef) else "def f():"
    body = ast.parse(f"{head}\n{indent}{written.strip()}")
    return frozenset(_names(body, ast.Load) & _names(function, ast.Store) - _names(body, ast.Store))


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    nodes = (child for child in ast.walk(node) if isinstance(child, ast.Name))
    return {name.id for name in nodes if isinstance(name.ctx, context)}
