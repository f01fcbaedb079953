"""Counting: the non-empty lines of torch's definitions with their imports, and of the ported file."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .source import Source, defined


def lines_of(text: str) -> int:
    tree = ast.parse(text)
    first = tree.body[0].end_lineno or 0 if ast.get_docstring(tree) is not None else 0
    return _nonempty(text.splitlines()[first:])


def torch_lines(pieces: Iterable[tuple[Source, ast.stmt]]) -> int:
    nodes = list(pieces)
    defined = {name for _, node in nodes for name in _bound(node)}
    definitions = sum(_length(source, node) for source, node in nodes)
    imports = {
        (source.path, statement.lineno): _length(source, statement)
        for source, node in nodes
        for statement in _imports(source)
        if (names_in(node) - defined) & set(_bound(statement))
    }
    return definitions + sum(imports.values())


def names_in(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _imports(source: Source) -> list[ast.stmt]:
    return [statement for statement in source.tree.body if isinstance(statement, ast.Import | ast.ImportFrom)]


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    return defined(node)


def _length(source: Source, node: ast.stmt) -> int:
    return _nonempty(source.segment(node).splitlines())


def _nonempty(lines: Iterable[str]) -> int:
    return sum(bool(line.strip()) for line in lines)
