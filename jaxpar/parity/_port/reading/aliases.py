"""Aliases: which statements change a tensor that another name still holds.

torch changes tensors in place, and every name that shares their memory sees it: `y = x; y += 1` changes x.
JAX's arrays do not change, so a line that is read by another name afterwards has no counterpart. Torch counts
the changes of a tensor in `_version`; between two statements of a function those of its variables are read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from .source import Function, Source, end_of, start_of

Versions = dict[str, list[tuple[torch.Tensor, int]]]
HARMLESS = ("shape", "dtype", "device", "ndim", "size", "dim", "numel")
"""What is read of a tensor although its numbers are others."""


class Aliases:
    """The names whose tensors a statement changed, by its place."""

    def __init__(self) -> None:
        self.changed: dict[tuple[str, int], set[str]] = {}
        self._last: dict[FrameType, tuple[int, Versions]] = {}

    def look(self, frame: FrameType, path: str, line: int) -> None:
        """Before a statement: what the one before it has changed."""
        now = dict(_versions(frame.f_locals))
        before, versions = self._last.get(frame, (line, {}))
        for name, held in now.items():
            known = {id(tensor): version for tensor, version in versions.get(name, ())}
            if any(known.get(id(tensor), version) != version for tensor, version in held):
                self.changed.setdefault((path, before), set()).add(name)
        self._last[frame] = line, now

    def forget(self) -> None:
        """Lets the frames go."""
        self._last.clear()


def _versions(names: dict[str, Any]) -> Iterator[tuple[str, list[tuple[torch.Tensor, int]]]]:
    """Of the tensors that the variables of a function are, or hold in a list."""
    for name, value in names.items():
        values = value if isinstance(value, list | tuple) else [value]
        tensors = [each for each in values if isinstance(each, torch.Tensor) and not each.is_inference()]
        if tensors:
            yield name, [(each, each._version) for each in tensors]


def read_later(source: Source, node: ast.stmt, names: set[str]) -> list[str]:
    """Those of the names, other than what the statement changes by its own words, that are read after it."""
    own = _targets(node)
    return sorted(name for name in names - own if _is_read(source, node, name))


def _targets(node: ast.stmt) -> set[str]:
    """The names that a statement changes, or assigns to."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        targets = [node.value.func] if isinstance(node.value.func, ast.Attribute) else []
    return {root.id for each in targets if isinstance(root := _root(each), ast.Name)}


def _root(node: ast.expr) -> ast.expr:
    """`x` of `x[0].T.add_(1)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _is_read(source: Source, node: ast.stmt, name: str) -> bool:
    """Whether a name is read after a statement, below it or in the next turn of a loop, and not set first."""
    around = list(_around(source, node))
    function = next((each for each in around if isinstance(each, Function)), source.tree)
    loop = next((each for each in reversed(around) if isinstance(each, ast.For | ast.While)), None)
    uses = sorted(_uses(source, function, name))
    after = [use for use in uses if use[0] > end_of(node)]
    again = [use for use in uses if loop is not None and start_of(loop) < use[0] < start_of(node)]
    for _, stored, statement in (*after, *again):
        if not stored:
            return True
        if source.parents[statement] in (*around, function):
            return False
    return False


def _around(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    """What a statement stands in, up to its function."""
    while node in source.parents and not isinstance(node, Function):
        node = source.parents[node]
        yield node


class _Use(tuple[tuple[int, int], bool, ast.stmt]):
    """Where a name is used, whether it is set there, and the statement; in the order in which Python runs."""

    def __lt__(self, other: Any) -> bool:
        return self[:2] < other[:2]


def _uses(source: Source, function: ast.AST, name: str) -> Iterator[_Use]:
    for each in ast.walk(function):
        if not isinstance(each, ast.Name) or each.id != name:
            continue
        parent = source.parents[each]
        if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS:
            continue
        statement: ast.AST = each
        while not isinstance(statement, ast.stmt):
            statement = source.parents[statement]
        stored = not isinstance(each.ctx, ast.Load)
        # A simple statement reads before it sets.
        simple = stored and isinstance(statement, ast.Assign | ast.AugAssign)
        yield _Use((end_of(statement) if simple else start_of(each), stored, statement))
