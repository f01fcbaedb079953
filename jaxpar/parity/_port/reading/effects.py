"""Effects: the user's functions that change an argument in place; `f(x)` becomes `x = f(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Function


def changed(function: Function) -> dict[str, bool]:
    """Return the arguments changed in place, each with whether the function returns that argument.

    A name assigned before the change no longer refers to the argument.
    """
    changed_names = {name for name, line in _changes(function) if not _set_before(function, name, line)}
    arguments = [child.arg for child in ast.walk(function.args) if isinstance(child, ast.arg)]
    returned = [child.value for child in ast.walk(function) if isinstance(child, ast.Return)]
    names = {value.id if isinstance(value, ast.Name) else None for value in returned}
    return {name: names == {name} for name in arguments if name in changed_names}


def _changes(function: Function) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of `x[0] = y`, `x[0] += y`, `x += y`, `x.add_(y)`."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Subscript)]
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
    stores = (child for child in ast.walk(function) if isinstance(child, ast.Assign) and child.lineno < line)
    targets = (child for store in stores for target in store.targets for child in ast.walk(target))
    return any(
        isinstance(target, ast.Name) and target.id == name and isinstance(target.ctx, ast.Store)
        for target in targets
    )
