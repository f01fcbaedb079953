"""Source: the text of a Python file, its syntax tree, and which node a running function is."""

from __future__ import annotations

import ast
import functools
import tokenize
from pathlib import Path
from types import CodeType

Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[str, int, int, int, int, str]
"""A place in a file that a node is known by: path, first line and column, last line and column, kind."""


class Source:
    """A Python file.

    Attributes:
      path, text, tree: of the file.
      parents: for each node the one that holds it.
    """

    def __init__(self, path: str):
        self.path = path
        with tokenize.open(path) as file:
            self.text = file.read()
        self.tree = ast.parse(self.text)
        self.lines = [line.encode() for line in self.text.splitlines(keepends=True)]
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """The text from a line and column to another; columns count bytes, as in `ast`."""
        (first, a), (last, b) = start, end
        if first == last:
            return self.lines[first - 1][a:b].decode()
        middle = self.lines[first : last - 1]
        return b"".join([self.lines[first - 1][a:], *middle, self.lines[last - 1][:b]]).decode()

    def segment(self, node: ast.AST) -> str:
        """A node as it was written."""
        return self.between(start_of(node), end_of(node))

    def key(self, node: ast.AST) -> Key:
        return (self.path, *start_of(node), *end_of(node), type(node).__name__)

    def function(self, code: CodeType) -> Function | None:
        """The definition that a code object was compiled from."""
        return self._functions.get((code.co_name, code.co_firstlineno))

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose body a definition stands in."""
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.ClassDef) else None

    def around(self, node: ast.AST) -> ast.AST | None:
        """The function that a node stands in."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, Function):
            found = self.parents.get(found)
        return found

    def place(self, node: ast.AST) -> str:
        """`models.py:12`."""
        return f"{Path(self.path).name}:{node.lineno}"  # type: ignore[attr-defined]

    def without(self, node: ast.AST, kept: set[str]) -> str:
        """A definition's text without methods that are neither kept nor Python's, nor used by those."""
        methods = [each for each in getattr(node, "body", []) if isinstance(each, Function)]
        stay = [each for each in methods if each.name in kept or each.name.startswith("__")]
        for each in stay:  # it grows
            used = {inner.attr for inner in ast.walk(each) if isinstance(inner, ast.Attribute)}
            stay += [other for other in methods if other.name in used and other not in stay]
        cut = [each for each in methods if each not in stay]
        written, at = "", start_of(node)
        for each in cut:
            first = min([start_of(each), *(start_of(d) for d in each.decorator_list)])
            written += self.between(at, (first[0], 0)).rstrip() + "\n\n"
            at = end_of(each)
        return (written + self.between(at, end_of(node)).lstrip("\n" if cut else "")).rstrip()

    @functools.cached_property
    def _functions(self) -> dict[tuple[str, int], Function]:
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                # A code object begins at the first decorator.
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found[node.name, first] = node
        return found


def start_of(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def source_of(path: str) -> Source:
    """The source of a file.

    Raises:
      OSError, SyntaxError: it cannot be read.
    """
    return Source(path)


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a file or class binds: of a definition or of an assignment."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]
