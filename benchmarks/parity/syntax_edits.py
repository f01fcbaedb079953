"""Mechanical edits of a Python file: one expression or statement at a time, whatever the file computes."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator

from jaxpar.parity.contract.source import span

from .edited import PAIRS, Change, Edited, source

SIDES = "torch", "jax"
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "/"), ast.MatMult: ("@", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip
Piece = tuple[str, int, int, str]  # a kind of edit, the piece of the text, and what replaces it


def edits(text: str, side: str) -> Iterator[Change]:
    """Yield each edit of a source, with the line of the piece that it changes."""
    for kind, start, end, new in dict.fromkeys(pieces(text)):
        edited = text[:start] + new + text[end:]
        old = re.sub(r"\s+", " ", text[start:end])
        if edited != text and parses(edited):
            yield Change(f"{kind}: {old} to {new}, {side}", side, text[:start].count("\n") + 1, edited, "")


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def pieces(text: str) -> Iterator[Piece]:
    tree = ast.parse(text)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr) and not is_left_out(node, parents):
            yield from of_expression(text, node)
            yield from of_call(text, node, imported)
            yield from of_name(text, node, parents, imported)
            yield from of_statement(text, node)


def is_left_out(node: ast.AST | None, parents: dict) -> bool:
    """Whether a node is part of what makes initial weights, which a comparison replaces, or a base class."""
    while node is not None:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Rngs", "super")):
            return True
        if isinstance(node, ast.Import | ast.ImportFrom):
            return True
        if isinstance(parents.get(node), ast.ClassDef) and isinstance(node, ast.expr):
            return True
        node = parents.get(node)
    return False


def of_expression(text: str, node: ast.AST) -> Iterator[Piece]:
    start, end = span(text, node)
    part = lambda x: text[slice(*span(text, x))]  # noqa: E731
    if isinstance(node, ast.BinOp):
        yield between(text, "operator", node.left, node.right, OPERATORS.get(type(node.op)))
        for operand in (node.left, node.right):
            yield "operand alone", start, end, f"({part(operand)})"
    elif isinstance(node, ast.Compare):
        yield between(text, "comparison", node.left, node.comparators[0], OPERATORS.get(type(node.ops[0])))
    elif isinstance(node, ast.UnaryOp):
        yield "sign", start, end, f"({part(node.operand)})"
    elif isinstance(node, ast.IfExp | ast.If):
        where = span(text, node.test)
        yield "branch negated", *where, f"(not ({part(node.test)}))"
    elif isinstance(node, ast.Constant):
        yield from (("constant", start, end, new) for new in constants(node.value))


def between(text: str, kind: str, left: ast.AST, right: ast.AST, signs: tuple[str, str] | None) -> Piece:
    start, end = span(text, left)[1], span(text, right)[0]
    gap = text[start:end]
    return kind, start, end, gap.replace(*signs, 1) if signs else gap


def constants(x: object) -> list[str]:
    if isinstance(x, bool):
        return [str(not x)]
    if isinstance(x, int):
        return [str(x + 1), str(x - 1)]
    return [f"{x * 1.01:.10g}", f"{x * 2:.10g}"] if isinstance(x, float) else []


def of_call(text: str, node: ast.AST, imported: set[str]) -> Iterator[Piece]:
    if not isinstance(node, ast.Call):
        return
    start, end = span(text, node)
    part = lambda x: text[slice(*span(text, x))]  # noqa: E731
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    texts = [*map(part, node.args), *(f"{k.arg}={part(k.value)}" for k in node.keywords)]
    function = part(node.func)
    for i in range(len(given)):
        if ast.unparse(given[i]) != "rngs":
            yield "argument dropped", start, end, f"{function}({', '.join(texts[:i] + texts[i + 1 :])})"
    for i in range(len(node.args) - 1):
        order = [*texts[:i], texts[i + 1], texts[i], *texts[i + 2 :]]
        yield "arguments exchanged", start, end, f"{function}({', '.join(order)})"
    if node.args:
        yield "call left out", start, end, f"({part(node.args[0])})"
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if owner is not None and ast.unparse(owner).partition(".")[0] not in imported | {"self"}:
        yield "method left out", start, end, part(owner)


def of_name(text: str, node: ast.AST, parents: dict, imported: set[str]) -> Iterator[Piece]:
    """Read a different variable or attribute of self; bind the names of a tuple in another order."""
    is_read = isinstance(getattr(node, "ctx", None), ast.Load)
    function: ast.AST | None = node
    while function is not None and not isinstance(function, ast.FunctionDef):
        function = parents.get(function)
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
        for a, b in itertools.pairwise(node.elts):
            gap = text[span(text, a)[1] : span(text, b)[0]]
            swapped = text[slice(*span(text, b))] + gap + text[slice(*span(text, a))]
            yield "names exchanged", span(text, a)[0], span(text, b)[1], swapped
    if function is None or not is_read:
        return
    if isinstance(node, ast.Name) and node.id not in imported | {"self", "rngs"}:
        others = {x.arg for x in function.args.args} | {
            x.id for x in ast.walk(function) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        }
        if node.id in others:
            yield from (
                ("variable", *span(text, node), x) for x in sorted(others - {node.id, "self", "rngs"})
            )
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
        owner = parents.get(function)
        others = {
            x.attr
            for x in ast.walk(owner or function)
            if isinstance(x, ast.Attribute)
            and isinstance(x.ctx, ast.Store)
            and ast.unparse(x.value) == "self"
        }
        yield from (("layer", *span(text, node), f"self.{x}") for x in sorted(others - {node.attr}))


def of_statement(text: str, node: ast.AST) -> Iterator[Piece]:
    if isinstance(node, ast.Assign | ast.AugAssign):
        yield "statement deleted", *span(text, node), "pass"


def draw(seed: int) -> Iterator[Edited]:
    """Yield edited pairs without end: a pair, a side, a kind and an edit of the kind, all drawn evenly.

    Every fourth pair has an edit on both sides.
    """
    generator, drawn = random.Random(seed), set()
    frame = {(pair, side): by_kind(edits(source(pair, side), side)) for pair in PAIRS for side in SIDES}
    for number in itertools.count():
        while True:
            pair = generator.choice(list(PAIRS))
            sides = SIDES if number % 4 == 3 else (generator.choice(SIDES),)
            kinds = [frame[pair, side] for side in sides]
            case = Edited(pair, tuple(generator.choice(k[generator.choice(list(k))]) for k in kinds))
            if case not in drawn:
                break
        drawn.add(case)
        yield case


def by_kind(every: Iterator[Change]) -> dict[str, list[Change]]:
    kinds: dict[str, list[Change]] = {}
    for change in every:
        kinds.setdefault(change.name.partition(":")[0], []).append(change)
    return kinds


def draw_from(texts: dict[str, str], seed: int) -> Iterator[tuple[str, Change]]:
    """Yield edits of JAX's files without end: a file, a kind and an edit of the kind, all drawn evenly."""
    generator, drawn = random.Random(seed), set()
    frame = {name: by_kind(edits(text, "jax")) for name, text in texts.items()}
    while True:
        name = generator.choice(list(frame))
        case = name, generator.choice(frame[name][generator.choice(list(frame[name]))])
        if case not in drawn:
            drawn.add(case)
            yield case
