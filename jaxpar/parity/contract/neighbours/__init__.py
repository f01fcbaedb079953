"""Neighbouring sources: edits of one step, likely and near ones first.

A rule is a function from a node to new texts for the node, its parts or neighbours, with a cost. The
search orders all edits by cost and by how near their lines ran to the first place that differs, tries each in
a run of that code alone, and a comparison of the whole edited file decides.
"""

from __future__ import annotations

import ast

from ..source import Code
from .calls import calls
from .edit import Edit, Surroundings, Texts
from .insertions import insertions
from .numbers import names, numbers
from .operators import operators, statements

RULES = operators, numbers, names, calls, statements, insertions
NEAR, EARLIER, ELSEWHERE = 0, 1, 2  # what an edit's distance adds to its cost


def neighbours(surroundings: Surroundings, near: frozenset[int], ran: frozenset[int]) -> list[Edit]:
    """Return all edits; `near` are the lines from the layer before the place to it, `ran` all before."""
    code = surroundings.code
    edits: list[tuple[int, int, Texts]] = []
    for position, node in enumerate(_nodes(code)):
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        distance = NEAR if near.intersection(lines) else EARLIER if ran.intersection(lines) else ELSEWHERE
        for rule in RULES:
            edits += [
                (cost + distance, position, texts) for cost, texts in rule(code, node, surroundings) if texts
            ]
    edits += _repeated(surroundings, edits)
    edits.sort(key=lambda edit: edit[:2])
    return [(cost, texts) for cost, _, texts in edits]


def _nodes(code: Code) -> list[ast.expr | ast.stmt]:
    """Return the expressions and statements, without imports, annotations and base classes."""
    left_out: set[ast.AST] = set()
    for node in ast.walk(code.tree):
        bases = node.bases if isinstance(node, ast.ClassDef) else []
        annotation = (
            [node.annotation] if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation else []
        )
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        for owner in (*bases, *annotation, *([node] if is_import else [])):
            left_out.update(ast.walk(owner))
    return [node for node in code.nodes(ast.expr, ast.stmt) if node not in left_out]


def _repeated(surroundings: Surroundings, edits: list[tuple[int, int, dict]]) -> list[tuple[int, int, dict]]:
    """Make the same edit in all expressions of a function that have the same text, or the same method."""
    code = surroundings.code
    groups: dict[tuple, list[tuple[int, int, ast.AST, str]]] = {}
    for cost, position, texts in edits:
        (node, new), *more = texts.items()
        if more or not isinstance(
            node, ast.Call | ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.Slice
        ):
            continue
        old, prefix = code.text(node), ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            prefix = code.text(node.func.value)
        has_prefix = bool(prefix) and old.startswith(prefix) and new.startswith(prefix)
        start = len(prefix) if has_prefix else 0
        function = surroundings.owner(node, ast.FunctionDef)
        groups.setdefault((function, old[start:], new[start:]), []).append((cost, position, node, new))
    repeated = []
    for group in groups.values():
        by_node = {node: new for _, _, node, new in group}
        if len(by_node) > 1:
            cost, position = min((cost, position) for cost, position, *_ in group)
            repeated.append((cost + 1, position, by_node))
    return repeated
