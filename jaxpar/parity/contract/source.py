"""Code: a port's source, its expressions by how near they ran to a place, and changes of exact nodes."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

Node = TypeVar("Node", bound=ast.expr | ast.stmt)
# Expressions that need parentheses as an operand, and the parents whose operands those are.
LOOSE = ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Lambda, ast.IfExp
TIGHT = ast.BinOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Subscript


class Code:
    """A source; `lines` are those that ran before a place, the latest first, or None for all."""

    def __init__(self, source: str, lines: Sequence[int] | None = None):
        self.source, self.tree = source, ast.parse(source)
        every = range(1, source.count("\n") + 2)
        self.rank = {line: i for i, line in reversed([*enumerate(every if lines is None else lines)])}
        self._texts: dict[ast.AST, str] = {}
        self.parents = {
            child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)
        }

    def nodes(self, *kinds: type[Node]) -> list[Node]:
        """Return the nodes of these kinds in lines that ran, the latest first."""
        ranked = [
            (min(self.rank[line] for line in lines), -node.col_offset, i, node)
            for i, node in enumerate(ast.walk(self.tree))
            if isinstance(node, kinds)
            if (lines := [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in self.rank])
        ]
        return [node for *_, node in sorted(ranked, key=lambda row: row[:3])]

    def calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions and methods with one of these last names, or all calls."""
        return [call for call in self.nodes(ast.Call) if not names or last_name(call.func) in names]

    @cached_property
    def layers(self) -> list[ast.Call]:
        """The calls of attributes of self, which layers are among."""
        return [call for call in self.calls() if ast.unparse(call.func).startswith("self.")]

    def text(self, node: ast.AST) -> str:
        if node not in self._texts:
            self._texts[node] = ast.get_source_segment(self.source, node) or ast.unparse(node)
        return self._texts[node]

    def operand(self, node: ast.AST) -> str:
        """Return an expression's text as an operand of any operator."""
        return f"({self.text(node)})" if isinstance(node, LOOSE) else self.text(node)

    def replaced(self, node: ast.AST, text: str) -> str:
        return self.with_all({node: text})

    def with_all(self, texts: dict[ast.AST, str]) -> str:
        """Return the source with nodes replaced by expressions, in parentheses where those are needed."""
        source = self.source
        for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset), reverse=True):  # type: ignore[attr-defined]
            text = texts[node]
            if isinstance(self.parents.get(node), TIGHT) and not isinstance(node, ast.Slice | ast.stmt):
                is_loose = isinstance(ast.parse(text, mode="eval").body, LOOSE)
                text = f"({text})" if is_loose and not self._in_parentheses(node) else text
            source = replaced(source, node, text)
        return source

    def _in_parentheses(self, node: ast.AST) -> bool:
        start, end = span(self.source, node)
        return self.source[:start].endswith("(") and self.source[end:].startswith(")")

    def names_at(self, node: ast.AST) -> list[str]:
        """Return the local names that are bound before a node, the latest first, without self."""
        function = node
        while function in self.parents and not isinstance(function, ast.FunctionDef):
            function = self.parents[function]
        if not isinstance(function, ast.FunctionDef):
            return []
        arguments = [a.arg for a in function.args.args if a.arg != "self"]
        stored = [
            (name.lineno, name.id)
            for name in ast.walk(function)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            if name.lineno < node.lineno  # type: ignore[attr-defined]
        ]
        names = [*arguments, *(name for _, name in sorted(stored))]
        return [*dict.fromkeys(reversed(names))]

    def outermost(self, node: ast.expr, kinds: tuple[type, ...]) -> bool:
        return not isinstance(self.parents.get(node), kinds)


def last_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def module_of(function: ast.expr) -> str:
    """Return `jax.nn.` of jax.nn.gelu."""
    return f"{ast.unparse(function.value)}." if isinstance(function, ast.Attribute) else ""


def with_keyword(source: str, call: ast.Call, name: str, value: str) -> str:
    for keyword in call.keywords:
        if keyword.arg == name:
            return replaced(source, keyword.value, value)
    end = span(source, call)[1] - 1
    before = source[:end].rstrip()
    comma = "" if before.endswith(("(", ",")) else ", "
    return f"{before}{comma}{name}={value}{source[end:]}"


def replaced(source: str, node: ast.AST, text: str) -> str:
    start, end = span(source, node)
    return source[:start] + text + source[end:]


def span(source: str, node: ast.AST) -> tuple[int, int]:
    position: ast.expr = node  # type: ignore[assignment]  # statements have the same attributes
    return (
        _offset(source, position.lineno, position.col_offset),
        _offset(source, position.end_lineno or 1, position.end_col_offset or 0),
    )


def _offset(source: str, line: int, column: int) -> int:
    lines = source.splitlines(keepends=True)
    # ast counts bytes of UTF-8.
    prefix = lines[line - 1].encode()[:column].decode()
    return sum(map(len, lines[: line - 1])) + len(prefix)


def diff(before: str, after: str, name: str) -> str:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def changes(sources: Iterator[str], before: str) -> Iterator[str]:
    """Yield sources that parse and differ from `before`, once."""
    tried = {before}
    for source in sources:
        try:
            ast.parse(source)
        except SyntaxError:
            continue
        if source not in tried:
            tried.add(source)
            yield source
