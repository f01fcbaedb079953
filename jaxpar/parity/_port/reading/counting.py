"""Counting: how many lines a reader has before him, in torch and in the port.

Of torch these are the definitions that were ported, and the imports that they need; of the port everything
but the docstring of the file, which says where it comes from. Empty lines do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .source import Source


def lines_of(text: str) -> int:
    """Of a written file."""
    tree = ast.parse(text)
    first = tree.body[0].end_lineno or 0 if ast.get_docstring(tree) is not None else 0
    return _full(text.splitlines()[first:])


def torch_lines(pieces: Iterable[tuple[Source, ast.stmt]]) -> int:
    """Of definitions in their files, with the imports of what they do not define themselves."""
    nodes = list(pieces)
    defined = {name for _, node in nodes for name in _bound(node)}
    definitions = sum(_between(source, node) for source, node in nodes)
    imports = {
        (source.path, each.lineno): _between(source, each)
        for source, node in nodes
        for each in _imports(source)
        if (names_in(node) - defined) & set(_bound(each))
    }
    return definitions + sum(imports.values())


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _imports(source: Source) -> list[ast.stmt]:
    return [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]


def _bound(node: ast.stmt) -> list[str]:
    """The names that a definition, an assignment or an import gives to a file."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return [getattr(node, "name", "")]


def _between(source: Source, node: ast.stmt) -> int:
    return _full(source.segment(node).splitlines())


def _full(lines: Iterable[str]) -> int:
    return sum(bool(line.strip()) for line in lines)
