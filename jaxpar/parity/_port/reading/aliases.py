"""Aliases: which statements change a tensor that a second name still refers to: `y = x; y += 1` changes x.

JAX's arrays do not change, so such a statement has no counterpart if the second name is read afterwards.
torch counts the writes to a tensor in `_version`; it is read for all variables between two statements.
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
"""Attributes that do not depend on a tensor's numbers."""
FEW = 100
"""Elements of a list that are looked at after each line: a loop may append a hundred thousand numbers."""
VIEWS = (
    "view",
    "reshape",
    "flatten",
    "transpose",
    "permute",
    "t",
    "squeeze",
    "unsqueeze",
    "expand",
    "detach",
)
"""Methods whose result may share its numbers with the tensor."""


class Aliases:
    def __init__(self) -> None:
        self.changed: dict[tuple[str, int], set[str]] = {}
        self._last: dict[FrameType, tuple[int, Versions]] = {}

    def record_changes(self, frame: FrameType, path: str, line: int) -> None:
        now = dict(_versions(frame.f_locals))
        # By frame, because recursive calls run the same lines with different variables.
        before, versions = self._last.get(frame, (line, {}))
        for name, tensors in now.items():
            recorded = {id(tensor): version for tensor, version in versions.get(name, ())}
            if any(recorded.get(id(tensor), version) != version for tensor, version in tensors):
                self.changed.setdefault((path, before), set()).add(name)
        self._last[frame] = line, now

    def release_frames(self) -> None:
        self._last.clear()


def _versions(names: dict[str, Any]) -> Iterator[tuple[str, list[tuple[torch.Tensor, int]]]]:
    for name, value in names.items():
        values = value[:FEW] if isinstance(value, list | tuple) else [value]
        # An inference tensor raises when its version is read.
        tensors = [x for x in values if isinstance(x, torch.Tensor) and not x.is_inference()]
        if tensors:
            yield name, [(tensor, tensor._version) for tensor in tensors]


def read_later(source: Source, node: ast.stmt, names: set[str]) -> list[str]:
    """Return the names that are read after the statement, without those it changes explicitly."""
    targets = _targets(node)
    return sorted(name for name in names - targets if _is_read(source, node, name))


def alias_read_later(source: Source, node: ast.stmt) -> str:
    """Return a name, read later, that may refer to the tensor that a statement changes; "" if none.

    For statements that did not run: the names on both sides of `z = y` and `z = y.view(-1)`.
    """
    changed = _changed(node)
    links = [link for assignment in ast.walk(_function(source, node)) for link in _links(assignment)]
    others = {name for link in links if link & changed for name in link - changed - {"self"}}
    return next((name for name in sorted(others) if _is_read(source, node, name)), "")


def changed_alias(source: Source, node: ast.stmt) -> str:
    """Return the name that an assignment which did not run lets a later statement change unseen, or "".

    In the run, that statement changed a tensor without a second name.
    """
    links = [link - {"self"} for link in _links(node) if len(link - {"self"}) == 2]
    for statement in ast.walk(_function(source, node)) if links else ():
        if not isinstance(statement, ast.stmt) or start_of(statement) <= end_of(node):
            continue
        changed = _changed(statement)
        for link in links:
            (*others,) = link - changed
            if len(others) == 1 and _is_read(source, statement, others[0]):
                return others[0]
    return ""


def _changed(node: ast.stmt) -> set[str]:
    """Return the names of what a statement changes in place."""
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    method = isinstance(func, ast.Attribute) and func.attr.endswith("_") and not func.attr.endswith("__")
    subscript = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    return _targets(node) if method or subscript or isinstance(node, ast.AugAssign) else set()


def _links(node: ast.AST) -> list[frozenset[str]]:
    """Return the pairs of names that an assignment lets refer to one tensor."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(node, ast.Assign) or not (
        isinstance(value, ast.Name | ast.Attribute | ast.Subscript) or _is_view(value)
    ):
        return []
    root = _root(node.value)
    return [frozenset({root.id, name}) for name in _targets(node)] if isinstance(root, ast.Name) else []


def _function(source: Source, node: ast.stmt) -> ast.AST:
    return next((x for x in _ancestors(source, node) if isinstance(x, Function)), source.tree)


def _is_view(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS


def _targets(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = [element for target in node.targets for element in getattr(target, "elts", [target])]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        targets = [node.value.func] if isinstance(node.value.func, ast.Attribute) else []
    return {root.id for target in targets if isinstance(root := _root(target), ast.Name)}


def _root(node: ast.expr) -> ast.expr:
    """`x` of `x[0].T.add_(1)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _is_read(source: Source, node: ast.stmt, name: str) -> bool:
    """Whether a name is read, after a statement or in its loop's next turn, before an assignment."""
    enclosing = list(_ancestors(source, node))
    function = _function(source, node)
    loop = next(
        (ancestor for ancestor in reversed(enclosing) if isinstance(ancestor, ast.For | ast.While)), None
    )
    uses = sorted(_uses(source, function, name), key=lambda use: use[:2])  # as Python runs them
    after = [use for use in uses if use[0] > end_of(node)]
    again = [use for use in uses if loop is not None and start_of(loop) < use[0] < start_of(node)]
    for _, stored, statement in (*after, *again):
        if not stored:
            return True
        if source.parents[statement] in (*enclosing, function):
            return False
    return False


def _ancestors(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    while node in source.parents and not isinstance(node, Function):
        node = source.parents[node]
        yield node


def _uses(source: Source, function: ast.AST, name: str) -> Iterator[tuple[tuple[int, int], bool, ast.stmt]]:
    """Yield the position of each use of a name, whether it stores, and its statement."""
    for node_ in ast.walk(function):
        if not isinstance(node_, ast.Name) or node_.id != name:
            continue
        parent = source.parents[node_]
        if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS:
            continue
        statement: ast.AST = node_
        while not isinstance(statement, ast.stmt):
            statement = source.parents[statement]
        stored = not isinstance(node_.ctx, ast.Load)
        # An assignment binds its targets after its right side is evaluated.
        simple = stored and isinstance(statement, ast.Assign | ast.AugAssign)
        yield end_of(statement) if simple else start_of(node_), stored, statement
