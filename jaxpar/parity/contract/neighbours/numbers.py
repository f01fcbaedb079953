"""Neighbours of constants and names.

Numbers near it, a fitted number, strings of a setting, letters of einsum; other variables, attributes and
layers, exchanged pairs, other orders of pieces.
"""

from __future__ import annotations

import ast
import itertools
import string

from ..source import Code
from .edit import SIMPLE, Edits, Surroundings, exchanges, is_number, is_of_self

MOST_PIECES = 4

FACTOR = "FACTOR_TO_FIT"  # in an edit: a number that makes the arrays equal
SETTINGS = (
    ("SAME", "VALID", "CIRCULAR", "CAUSAL"), ("constant", "edge", "reflect", "symmetric", "wrap"),
    ("nearest", "bilinear", "bicubic", "linear", "cubic"), ("mean", "sum", "none", "batchmean"),
    ("ij", "xy"), ("fan_in", "fan_out", "fan_avg"),
)  # fmt: skip
AXES = ("(0, 1)", "(1, 2)", "(2, 3)", "(-2, -1)", "(1, 2, 3)", "(0, 2, 3)", "(0, 1, 2)", "-1", "1", "0")
SMALL = 4  # integers that may be an axis


def numbers(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if is_number(node):
        yield from _of_number(code, node, surroundings)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield 0, {node: str(not node.value)}
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _of_string(node, node.value)
    elif isinstance(node, ast.Tuple) and node.elts and all(map(_is_integer, node.elts)):
        yield from _of_axes(code, node)
    elif isinstance(node, ast.UnaryOp) and is_number(node.operand) and _is_integer(node):
        for other in ("-1", "0", "1", "2", "-2", "3", "-3"):
            yield 0, {node: other}


def _of_number(code: Code, node: ast.Constant, surroundings: Surroundings) -> Edits:
    x = node.value
    if isinstance(x, int):
        others = [x + 1, x - 1, -x, *range(-3, SMALL), 2 * x, x // 2, x * x]
        yield from ((0 if cost < 3 else 1, {node: str(other)}) for cost, other in enumerate(others))
        yield 1, {node: f"({x}, {x})"}
        for axes in AXES[:-3] if abs(x) < SMALL else ():
            yield 1, {node: axes}
    yield (2 if isinstance(x, int) else 0), {node: FACTOR}
    for cost, texts in ((0, surroundings.torchs_numbers), (1, surroundings.numbers)):
        for text in texts:
            if (isinstance(x, int) == text.isdigit()) or isinstance(x, float):
                yield cost, {node: text}


def _of_string(node: ast.Constant, text: str) -> Edits:
    for group in SETTINGS:
        if text in group:
            yield from ((0, {node: repr(other)}) for other in group if other != text)
    if "->" in text and text.isascii():
        inputs, _, result = text.replace(" ", "").partition("->")
        operands = inputs.split(",")
        letters = sorted(set(inputs) & set(string.ascii_letters))
        for i, part in enumerate([*operands, result]):
            for a, b in itertools.combinations(sorted(set(part) & set(string.ascii_letters)), 2):
                other = part.translate(str.maketrans(a + b, b + a))
                parts = [*operands, result]
                parts[i] = other
                yield 0, {node: repr(f"{','.join(parts[:-1])}->{parts[-1]}")}
            for a in sorted(set(part) & set(string.ascii_letters)):
                for b in letters:
                    parts = [*operands, result]
                    parts[i] = part.replace(a, b)
                    yield 1, {node: repr(f"{','.join(parts[:-1])}->{parts[-1]}")}
        if len(operands) == 2:
            yield 0, {node: repr(f"{operands[1]},{operands[0]}->{result}")}


def _is_integer(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(node, ast.Constant) and type(node.value) is int


def _of_axes(code: Code, node: ast.Tuple) -> Edits:
    for axes in AXES:
        yield 0, {node: axes}
    texts = [code.text(x) for x in node.elts]
    if 1 < len(texts) < 5:
        for order in itertools.permutations(texts):
            yield 0, {node: f"({', '.join(order)})"}
    for difference in (1, -1):
        values = [ast.literal_eval(x) + difference for x in node.elts]
        yield 0, {node: f"({', '.join(map(str, values))},)"}


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
