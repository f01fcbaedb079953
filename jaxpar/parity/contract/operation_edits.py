"""Edits of operations: operators, reductions, indices, padding, and the constants of norms and gates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Code, module_of

OPERATORS: dict[str, tuple[type[ast.operator], str, str]] = {
    "added": (ast.Add, "+", "add"),
    "subtracted": (ast.Sub, "-", "subtract"),
    "multiplied": (ast.Mult, "*", "multiply"),
    "divided": (ast.Div, "/", "divide"),
}


def operator(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Join operands by the right operator, or by its function."""
    (kind, _, instead_of), (_, sign, function) = OPERATORS[wrong], OPERATORS[right]
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, kind):
            yield code.replaced(node, f"{code.operand(node.left)} {sign} {code.operand(node.right)}")
    for call in code.calls(instead_of):
        yield code.replaced(call.func, f"{module_of(call.func)}{function}")


def reduction_of_axes(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Call the right reduction with the same axes."""
    for call in code.calls(wrong, f"a{wrong}"):
        yield code.replaced(call.func, f"{module_of(call.func)}{right.removeprefix('a')}")


def index(code: Code, right: str, wrong: str) -> Iterator[str]:
    """Read the right element or range, where the wrong one is read."""
    pairs = {w: r for r, w in zip(right.split(", "), wrong.split(", "), strict=True) if r != w}
    for node in code.nodes(ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if (text := ast.unparse(part)) in pairs:
                yield code.replaced(part, pairs[text])


def padding(code: Code, right: str) -> Iterator[str]:
    """Pad both sides alike, where one side has all."""
    sizes = ast.literal_eval(right)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    every = [node for node in ast.walk(code.tree) if isinstance(node, ast.Call | ast.Tuple)]
    for node in every:
        keywords = node.keywords if isinstance(node, ast.Call) else []
        for keyword in keywords:
            if keyword.arg == "padding":
                yield code.replaced(keyword.value, f"[{', '.join(f'({size}, {size})' for size in sizes)}]")
    for node in every:
        for size in sizes:
            if ast.unparse(node) in (f"({2 * size}, 0)", f"(0, {2 * size})"):
                yield code.replaced(node, f"({size}, {size})")


def deviation(code: Code, *_: str) -> Iterator[str]:
    """Divide a variance by n, and add an epsilon to it instead of to its root."""
    divisors: dict[ast.AST, str] = {
        keyword.value: "0"
        for call in code.calls("var", "std")
        for keyword in call.keywords
        if keyword.arg in ("ddof", "correction")
    }
    sums = [node for node in code.nodes(ast.BinOp) if isinstance(node.op, ast.Add)]
    root_sums: list[dict[ast.AST, str]] = [
        {node: f"({code.operand(node.left)} ** 2 + {code.text(node.right)}) ** 0.5"} for node in sums
    ]
    yield from (code.with_all(texts) for texts in ([divisors] if divisors else []))
    yield from (code.with_all(texts) for texts in root_sums)
    for texts in root_sums:
        node = next(iter(texts))
        if divisors and not any(child in divisors for child in ast.walk(node)):
            yield code.with_all(divisors | texts)


def forget_bias(code: Code, *_: str) -> Iterator[str]:
    """Leave out a 1 that is added to a gate."""
    for node in code.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add):
            for one, other in ((node.right, node.left), (node.left, node.right)):
                if isinstance(one, ast.Constant) and one.value == 1:
                    yield code.replaced(node, code.operand(other))
    for call in code.calls():
        for keyword in call.keywords:
            if keyword.arg == "forget_bias":
                yield code.replaced(keyword.value, "0.0")
