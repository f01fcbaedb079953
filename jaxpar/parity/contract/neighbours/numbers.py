"""Neighbours of constants: numbers near it, a fitted number, strings of a setting, letters of einsum."""

from __future__ import annotations

import ast
import itertools
import string

from ..source import Code
from .edit import Edits, Surroundings, is_number

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
