"""Neighbours of statements: two exchanged, one left out, bounds of slices, a target kept."""

from __future__ import annotations

import ast
import itertools

from ..source import Code
from .edit import SIMPLE, Edits, Surroundings


def statements(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if isinstance(node, ast.Slice | ast.Subscript):
        yield from _slices(code, node)
    if not isinstance(node, SIMPLE) or isinstance(getattr(node, "value", None), ast.Constant | None):
        return
    block = next((body for body in _blocks(code.parents.get(node)) if node in body), [])
    position = block.index(node) if node in block else 0
    for later in block[position + 1 : position + 3]:
        if isinstance(later, SIMPLE):
            yield int(later is not block[position + 1]), {node: code.text(later), later: code.text(node)}
    if not isinstance(node, ast.Return):
        yield 0, {node: "pass"}
    for target in node.targets if isinstance(node, ast.Assign) else ():
        yield from ((2, {target: name}) for name in surroundings.names_at(node))
    if isinstance(node, ast.Return) and node.value is not None:
        for name in surroundings.names_at(node):
            yield 1, {node.value: name}


def _blocks(parent: ast.AST | None) -> list[list[ast.stmt]]:
    return [body for name in ("body", "orelse") if isinstance(body := getattr(parent, name, None), list)]


def _slices(code: Code, node: ast.Slice | ast.Subscript) -> Edits:
    """Move the bounds of slices, leave one out, or take the other side."""
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Slice) and node.slice.lower and node.slice.upper is None:
            yield 0, {node.slice: f":{code.text(node.slice.lower)}"}
        return
    lower, upper, step = (x and code.text(x) for x in (node.lower, node.upper, node.step))
    lowers, uppers = ({x: 0 if x == bound else 1 for x in options} for bound, options in (
        (lower, dict.fromkeys((lower, None, upper, f"{lower or 0} + 1", f"{lower or 0} - 1", "1"))),
        (upper, dict.fromkeys((upper, None, lower, f"{upper} - 1" if upper else "-1", f"{upper or 0} + 1"))),
    ))  # fmt: skip
    steps = {None: 1, "2": 2, "-1": 1} | {step: 0}
    for (a, i), (b, j), (c, k) in itertools.product(lowers.items(), uppers.items(), steps.items()):
        if 0 < i + j + k < 3:
            by = f":{c}" if c else ""
            yield i + j + k - 1, {node: f"{a or ''}:{b or ''}{by}"}
