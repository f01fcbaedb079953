"""Names in a ported file that its torch source does not have."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from jaxpar.parity._port.reading.packages import is_users

OURS = frozenset(
    {
        *("nnx", "jax", "jnp", "nn", "F", "struct", "rngs", "__call__", "__hash__"),
        *("hole", "line", "NotImplementedError", "INITIAL_VALUES", "initial_values", "initialise", "net"),
        *("deterministic", "partial", "ConstructorArguments"),
    }
)
"""What every port may say: what it imports, its random numbers, the hash of a config, and the function that
raises at a hole."""


def strange(text: str) -> list[str]:
    """The names of a ported file that occur nowhere in the files which it was ported from."""
    tree = ast.parse(text)
    known = {word for path in origins(tree) for word in re.findall(r"\w+", path.read_text())}
    return sorted(set(names(tree)) - known - OURS - set(dir(builtins)))


def names(tree: ast.AST) -> Iterator[str]:
    """Everything that is called something: variables, arguments, attributes of `self`, definitions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def origins(tree: ast.Module) -> set[Path]:
    """The files of the user that define what a ported file defines."""
    defined = {name for node in tree.body for name in _bound(node)}
    return {
        Path(module.__file__)
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) and is_users(module.__file__)
        if any(_defines(module, name) for name in defined)
    }


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _defines(module: ModuleType, name: str) -> bool:
    value = vars(module).get(name)
    return value is not None and getattr(value, "__module__", module.__name__) == module.__name__
