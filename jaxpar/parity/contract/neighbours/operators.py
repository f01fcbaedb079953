"""Neighbours of operators: exchanged signs and operands, dropped terms, regrouped and negated expressions."""

from __future__ import annotations

import ast

from ..source import Code
from .edit import Edits, Surroundings

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
