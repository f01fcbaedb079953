"""Source: the text of a Python file, its syntax tree, and the node of a running function."""

from __future__ import annotations

import ast
import functools
import tokenize
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[str, int, int, int, int, str]
"""A node's identity across parses: path, first line and column, last line and column, type."""


class Source:
    """A Python file; `parents` holds the parent of each node."""

    def __init__(self, path: str):
        self.path = path
        # tokenize.open decodes by the coding line, as Python does.
        with tokenize.open(path) as file:
            self.text = file.read()
        self.tree = ast.parse(self.text)
        # As UTF-8, because ast counts columns in its bytes.
        self.lines = [line.encode() for line in self.text.splitlines(keepends=True)]
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Return the text between two positions; columns count bytes, as in `ast`."""
        (first, a), (last, b) = start, end
        if first == last:
            return self.lines[first - 1][a:b].decode()
        middle = self.lines[first : last - 1]
        return b"".join([self.lines[first - 1][a:], *middle, self.lines[last - 1][:b]]).decode()

    def segment(self, node: ast.AST) -> str:
        return self.between(start_of(node), end_of(node))

    def key(self, node: ast.AST) -> Key:
        # An expression and its statement can have the same extent, so the type is part of the key.
        return (self.path, *start_of(node), *end_of(node), type(node).__name__)

    def function(self, code: CodeType) -> Function | None:
        return self._functions.get((code.co_name, code.co_firstlineno))

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.ClassDef) else None

    def around(self, node: ast.AST) -> ast.AST | None:
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, Function):
            parent = self.parents.get(parent)
        return parent

    def place(self, node: ast.AST) -> str:
        """Return `models.py:12`."""
        return f"{Path(self.path).name}:{node.lineno}"  # type: ignore[attr-defined]

    def with_methods(self, node: ast.AST, names: set[str]) -> str:
        """Return a definition's text with only the named and special methods and the methods they use."""
        methods = [statement for statement in getattr(node, "body", []) if isinstance(statement, Function)]
        stay = [method for method in methods if method.name in names or method.name.startswith("__")]
        for method in stay:  # it grows
            used = {inner.attr for inner in ast.walk(method) if isinstance(inner, ast.Attribute)}
            stay += [other for other in methods if other.name in used and other not in stay]
        cut = [method for method in methods if method not in stay]
        written, at = "", start_of(node)
        for method in cut:
            first = min([start_of(method), *(start_of(d) for d in method.decorator_list)])
            written += self.between(at, (first[0], 0)).rstrip() + "\n\n"
            at = end_of(method)
        return (written + self.between(at, end_of(node)).lstrip("\n" if cut else "")).rstrip()

    @functools.cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The first definition of each name."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        return {node.name: node for node in reversed(nodes)}

    @functools.cached_property
    def _functions(self) -> dict[tuple[str, int], Function]:
        functions = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                # A code object begins at the first decorator.
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                functions[node.name, first] = node
        return functions


def start_of(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def source_of(path: str) -> Source:
    return Source(path)


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


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
