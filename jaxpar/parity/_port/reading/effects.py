"""Effects: functions of the user that change an argument in place; `f(x)` becomes `x = f(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Function


def changed(function: Function) -> dict[str, bool]:
    """The arguments that are changed in place, and whether each of them is what the function returns.

    A name that has been given another value before is no longer the argument.
    """
    found = {name for name, line in _changes(function) if not _set_before(function, name, line)}
    arguments = [each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)]
    returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
    names = {each.id if isinstance(each, ast.Name) else None for each in returned}
    return {name: names == {name} for name in arguments if name in found}


def _changes(function: Function) -> Iterator[tuple[str, int]]:
    """`x[0] = y`, `x[0] += y`, `x += y`, `x.add_(y)`: the name and the line."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [each for each in node.targets if isinstance(each, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            targets = [node.func.value] if name.endswith("_") and not name.endswith("__") else []
        for target in targets:
            root = target
            while isinstance(root, ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name):
                yield root.id, root.lineno


def _set_before(function: Function, name: str, line: int) -> bool:
    stores = (each for each in ast.walk(function) if isinstance(each, ast.Assign) and each.lineno < line)
    targets = (each for store in stores for target in store.targets for each in ast.walk(target))
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in targets
    )
