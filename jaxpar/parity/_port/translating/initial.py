"""Initial values: statements that only set them are left out, because torch's weights are copied."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from .. import rules
from ..reading.runtime import library_name
from ..reading.scope import UNKNOWN, dotted
from .branches import DELETED, Branches

INITIAL = re.compile(r"(uniform|normal|zero|fill|copy|constant|trunc_normal|kaiming\w*|xavier\w*)_$")
"""Methods that set a parameter's initial value."""
_ASKED: set[FunctionType] = set()
"""Functions under examination, to end recursion."""


class Initial(Branches):
    """Finds statements that set initial values, or only register something with torch."""

    def said_silent(self, node: ast.stmt) -> str:
        if any(
            "init" in dotted(self.scope.value(child.func)) or INITIAL.search(_name_of(child.func))
            for child in ast.walk(node)
            if isinstance(child, ast.Call)
        ):
            self.needs.note("initial values are not ported: they come with torch's weights")
        return DELETED

    def silent(self, node: ast.stmt) -> bool:
        """Return whether a statement only sets initial values, or registers something with torch."""
        if isinstance(node, ast.Expr):
            return self._silent_call(node.value)
        if isinstance(node, ast.If):
            return self._all_silent([*node.body, *node.orelse])
        if isinstance(node, ast.For | ast.With):
            return self._all_silent(node.body)
        if isinstance(node, ast.Assign):
            return all(self._initial_data(target) for target in node.targets)
        return isinstance(node, ast.Pass)

    def _all_silent(self, body: Sequence[ast.stmt]) -> bool:
        """Return whether all statements are silent or set local variables."""
        local = [isinstance(statement, ast.Assign) and _is_local(statement) for statement in body]
        silent = list(map(self.silent, body))
        return any(silent) and all(a or b for a, b in zip(local, silent, strict=True))

    def _initial_data(self, target: ast.expr) -> bool:
        """Return whether a target is `m.weight.data` or `m.weight.data[i]`."""
        while isinstance(target, ast.Subscript):
            target = target.value
        return isinstance(target, ast.Attribute) and target.attr == "data"

    def _silent_call(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return False
        if not isinstance(node, ast.Call):
            return False
        value = self.scope.value(node.func)
        if value is not UNKNOWN and dotted(value).startswith(rules.SILENT):
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        name = node.func.attr
        if name == "apply" and self._is_module(node.func.value):
            return True
        if INITIAL.search(name):
            return self._of_parameter(node.func.value)
        return self._silent_method(node.func)

    def _of_parameter(self, node: ast.expr) -> bool:
        """Return whether a tensor is a parameter, a part of one, or the `data` of either."""
        data = False
        while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            data |= isinstance(node, ast.Attribute)
            node = node.value
        if data and isinstance(node, ast.Attribute) and not self.in_call(node):
            return True
        site = self.site(node)
        if site is None:
            return isinstance(node, ast.Attribute) and node.attr in ("weight", "bias")
        return bool(site.kinds) and all(issubclass(kind, nn.Parameter) for kind in site.kinds)

    def _silent_method(self, func: ast.Attribute) -> bool:
        """Return whether a user's method only sets initial values."""
        site = self.site(func)
        functions = list(site.objects.values()) if site else []
        if functions and all(library_name(function) in rules.LIBRARY_SILENT for function in functions):
            return True
        if functions and all(dotted(function).startswith(rules.SILENT) for function in functions):
            return True
        return bool(functions) and all(self.gives_initial_values(function) for function in functions)

    def gives_initial_values(self, function: Any) -> bool:
        if not isinstance(function, FunctionType) or function.__name__ in ("forward", "__init__"):
            return False
        node = self.source.function(function.__code__)
        if node is None or function.__code__.co_filename != self.source.path:
            return False
        if function in _ASKED:
            return True  # it calls itself
        _ASKED.add(function)
        try:
            body = [statement for statement in node.body if not is_docstring(statement)]
            return bool(body) and all(map(self.inside(node).silent, body))
        finally:
            _ASKED.discard(function)


def _is_local(node: ast.Assign) -> bool:
    return all(isinstance(target, ast.Name) for target in node.targets)


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
