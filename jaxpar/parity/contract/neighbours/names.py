"""Neighbours of names: other variables, attributes and layers, exchanged pairs, other orders of pieces."""

from __future__ import annotations

import ast
import itertools

from ..source import Code
from .edit import SIMPLE, Edits, Surroundings, exchanges, is_of_self

MOST_PIECES = 4


def names(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if isinstance(node, ast.Name) and surroundings.is_value(node):
        yield from ((0, {node: name}) for name in surroundings.names_at(node) if name != node.id)
    elif isinstance(node, ast.Attribute) and is_of_self(node) and isinstance(node.ctx, ast.Load):
        for name in surroundings.attributes_at(node):
            if name != node.attr:
                yield 0 if name not in surroundings.read else 1, {node: f"self.{name}"}
        yield from _other_attributes(code, node, surroundings)
    elif isinstance(node, ast.Tuple | ast.List):
        yield from _orders(code, node)
    elif isinstance(node, SIMPLE):
        yield from _within(code, node, surroundings)


def _orders(code: Code, node: ast.Tuple | ast.List) -> Edits:
    """Take the elements in a different order, or leave one out."""
    texts = [code.text(x) for x in node.elts]
    if 1 < len(texts) <= MOST_PIECES:
        for order in itertools.permutations(range(len(texts))):
            yield 0, {node.elts[i]: texts[j] for i, j in enumerate(order) if i != j}
    if isinstance(node.ctx, ast.Load) and len(texts) > 1:
        opening, closing = "[]" if isinstance(node, ast.List) else "()"
        if isinstance(code.parents.get(node), ast.Subscript):
            opening = closing = ""
        for i in range(len(texts)):
            remaining = ", ".join(texts[:i] + texts[i + 1 :])
            yield 2, {node: f"{opening}{remaining}{',' * (len(texts) == 2)}{closing}"}
    signed = [x for x in node.elts if isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub)]
    if len(signed) == 1 and isinstance(node.ctx, ast.Load):  # (-b, a) for (b, -a)
        for other in node.elts:
            if other is not signed[0]:
                without, negated = code.text(signed[0].operand), f"-{code.operand(other)}"
                yield 1, {signed[0]: without, other: negated}
                yield 1, {signed[0]: negated, other: without}


def _within(code: Code, statement: ast.stmt, surroundings: Surroundings) -> Edits:
    """Exchange two names or attributes in all of a statement, or two of its values."""
    values = [x for x in ast.walk(statement) if isinstance(x, ast.Name | ast.Attribute)]
    read = [x for x in values if surroundings.is_value(x) or (is_of_self(x) and isinstance(x.ctx, ast.Load))]
    by_text: dict[str, list[ast.expr]] = {}
    for x in read:
        by_text.setdefault(code.text(x), []).append(x)
    for a, b in itertools.combinations(by_text, 2):
        if a.startswith("self.") == b.startswith("self."):
            yield 1, {x: b if code.text(x) == a else a for text in (a, b) for x in by_text[text]}
    for texts in exchanges(code, read) if len(read) < 12 else ():
        yield 2, texts


def _other_attributes(code: Code, node: ast.Attribute, surroundings: Surroundings) -> Edits:
    """Exchange two attributes of self where they are read, in the whole class or in two expressions."""
    owner = surroundings.owner(node, ast.ClassDef)
    if owner is None:
        return
    read = [x for x in ast.walk(owner) if is_of_self(x) and isinstance(x.ctx, ast.Load)]
    for other in {x.attr: x for x in read if x.attr != node.attr}.values():
        swapped = {node.attr: other.attr, other.attr: node.attr}
        yield 1, {x: f"self.{swapped[x.attr]}" for x in read if x.attr in swapped}
        yield 1, {node: f"self.{other.attr}", other: f"self.{node.attr}"}
