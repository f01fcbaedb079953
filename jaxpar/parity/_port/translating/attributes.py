"""Attributes of `self`: how statements set and read what a module keeps, and what conditions on it decide."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import FunctionType

from ..reading.scope import defined_by_user
from .context import Context
from .expressions import is_none

ASKING = ("hasattr", "getattr")
CONVERTING = ("to", "type_as", "type", "float", "double", "cuda", "cpu")


def own_attribute(node: ast.AST) -> str:
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own else ""  # type: ignore[attr-defined]


def set_by(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name and the value that a statement sets anew; a conversion sets none."""
    return ("", None) if converted(node) else _assigned(node)


def _assigned(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name and the value of `self.table = x` and `self.register_buffer("table", x)`."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        target = target.value if isinstance(target, ast.Subscript) else target
        return (own_attribute(target), node.value) if getattr(node, "targets", [0])[1:] == [] else ("", None)
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and own_attribute(call.func) == "register_buffer" and len(call.args) > 1:
        name = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
        return str(name), call.args[1]
    return "", None


def converted(node: ast.AST) -> str:
    """Return the name of `self.t = self.t.to(x)`, also with `if self.t is not None else None`."""
    name, value = _assigned(node)
    if isinstance(value, ast.IfExp) and is_none(value.orelse):
        value = value.body if ast.unparse(value.test) == f"self.{name} is not None" else None
    func = value.func if isinstance(value, ast.Call) else None
    is_own = isinstance(func, ast.Attribute) and own_attribute(func.value) == name
    return name if is_own and func.attr in CONVERTING else ""  # type: ignore[union-attr]


def reads(node: ast.AST, names: Iterable[str]) -> bool:
    """Return whether an expression reads one of the attributes, also as `hasattr(self, "table")`."""
    return any(own_attribute(child) in names or asked(child) in names for child in ast.walk(node))


def asked(node: ast.AST) -> str:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("hasattr", "getattr")
    ):
        owner, name = node.args[:2]
        if isinstance(owner, ast.Name) and owner.id == "self" and isinstance(name, ast.Constant):
            return str(name.value)
    return ""


def computes(node: ast.If | ast.IfExp, names: Iterable[str]) -> bool:
    """Return whether the first branch sets the memory, and does not only read it."""
    body = node.body if isinstance(node.body, list) else [node.body]
    return any(set_by(child)[0] in names for statement in body for child in ast.walk(statement))


def as_if_empty(ctx: Context, node: ast.expr, names: Iterable[str], stale: bool) -> bool | None:
    """Return a condition's value while nothing is kept; a comparison with what is kept is `stale`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = as_if_empty(ctx, node.operand, names, not stale)
        return None if value is None else not value
    if isinstance(node, ast.BoolOp):
        decisive = isinstance(node.op, ast.Or)
        values = [as_if_empty(ctx, part, names, stale) for part in node.values]
        return decisive if decisive in values else None if None in values else not decisive
    if not reads(node, names):
        return None
    if isinstance(node, ast.Compare) and any(map(is_none, node.comparators)):
        return isinstance(node.ops[0], ast.Is | ast.Eq)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return isinstance(node.ops[0], ast.NotIn)
    if isinstance(node, ast.Attribute) or asked(node):
        return False
    if isinstance(node, ast.Call) and len(node.args) == 1 and own_attribute(node.args[0]):
        function = ctx.scope.value(node.func)
        if isinstance(function, FunctionType) and defined_by_user(function):
            return bool(function(None))  # `exists(self.table)`
    return stale


def is_get(node: ast.expr, names: Iterable[str]) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "get" and own_attribute(func.value) in names


def loaded(node: ast.AST) -> str:
    return own_attribute(node) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else ""
