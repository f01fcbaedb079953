"""Neighbours of operators and statements.

Exchanged signs and operands, dropped terms, regrouped and negated expressions; two statements exchanged, one
left out, bounds of slices, a target kept.
"""

from __future__ import annotations

import ast
import itertools

from ..source import Code
from .edit import SIMPLE, Edits, Surroundings

SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
SIBLINGS = {
    "+": "-*", "-": "+", "*": "/+", "/": "*", "//": ("/", "%", "*"), "%": ("//",), "**": ("*",), "@": ("*",),
    "&": "|", "|": "&", "^": "&|", "<<": (">>",), ">>": ("<<",),
}  # fmt: skip
COMPARISONS = "<", "<=", ">", ">=", "==", "!="
COMMUTATIVE = "+", "*", "&", "|", "^", "==", "!="


def operators(code: Code, node: ast.AST, surroundings: Surroundings) -> Edits:
    if isinstance(node, ast.BinOp):
        yield from _of_operation(code, node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SIGNS:
        sign = SIGNS[type(node.ops[0])]
        first, right = code.operand(node.left), code.operand(node.comparators[0])
        for position, instead in enumerate(COMPARISONS):
            if instead != sign:
                yield position >= 4, {node: f"{first} {instead} {right}"}
        for difference in ("+ 1", "- 1"):
            yield 1, {node: f"{first} {sign} {right} {difference}"}
    elif isinstance(node, ast.UnaryOp):
        yield 0, {node: code.text(node.operand)}
        if isinstance(node.op, ast.Not):
            yield 0, {node: code.text(node.operand)}
    elif isinstance(node, ast.BoolOp):
        sign = " or " if isinstance(node.op, ast.And) else " and "
        yield 0, {node: sign.join(map(code.operand, node.values))}
        yield from ((0, {node: code.text(value)}) for value in node.values)
    elif isinstance(node, ast.IfExp | ast.If | ast.While):
        yield 0, {node.test: f"not {code.operand(node.test)}"}
        if isinstance(node, ast.IfExp):
            yield from ((0, {node: code.text(x)}) for x in (node.body, node.orelse))
    elif isinstance(node, ast.AugAssign):
        for instead in ("+=", "-=", "*=", "/=", "="):
            yield 0, {node: f"{code.text(node.target)} {instead} {code.text(node.value)}"}


def _of_operation(code: Code, node: ast.BinOp) -> Edits:
    sign = SIGNS[type(node.op)]
    first, right = code.operand(node.left), code.operand(node.right)
    for cost, instead in enumerate(SIBLINGS[sign]):
        yield min(cost, 1), {node: f"{first} {instead} {right}"}
    yield from ((0, {node: code.text(operand)}) for operand in (node.left, node.right))
    if sign not in COMMUTATIVE:
        yield 0, {node: f"{right} {sign} {first}"}
    if sign == "-":
        yield 1, {node: f"-({first} + {right})"}
    inner = node.left
    if isinstance(inner, ast.BinOp):  # (a + b) * c for a + b * c
        a, b, within = code.operand(inner.left), code.operand(inner.right), SIGNS[type(inner.op)]
        if (sign, within) not in (("+", "+"), ("*", "*")):
            yield 0, {node: f"({a} {within} ({b} {sign} {right}))"}
            yield 1, {node: f"(({a} {sign} {right}) {within} {b})"}
    inner = node.right
    if isinstance(inner, ast.BinOp):
        b, c, within = code.operand(inner.left), code.operand(inner.right), SIGNS[type(inner.op)]
        if (sign, within) not in (("+", "+"), ("*", "*")):
            yield 0, {node: f"(({first} {sign} {b}) {within} {c})"}
            yield 1, {node: f"({b} {within} ({first} {sign} {c}))"}


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
