"""Constructors: `super().__init__()`, what Flax needs after it, and registered buffers and parameters."""

from __future__ import annotations

import ast

from torch import nn

from ..reading.runtime import of_runtime
from ..reading.scope import defined_by_user, definition
from ..reading.source import start_of
from .context import Context
from .drawing import STREAM, draws_first
from .expressions import text
from .fragment import Hole

MODE = "self.deterministic = False"
"""NNX's counterpart of `self.training`, set by `train()` and `eval()`."""


def super_init(ctx: Context, call: ast.Call) -> str | None:
    """Write `super().__init__()`, without that of nn.Module, and the attributes that Flax needs."""
    bases = ctx.kind.__mro__[1:] if ctx.kind else ()
    base = next((base for base in bases if "__init__" in vars(base)), None)
    reads_first = reads_training_first(ctx.kind)
    lines = [MODE] if reads_first else []
    if draws_first(ctx, ctx.kind):
        lines.append(STREAM)
    if (
        base is nn.Module
        and not reads_first
        and any(map(_reads_training, ctx.kind.__mro__ if ctx.kind else ()))
    ):
        lines.insert(0, MODE)
    if base is not nn.Module:
        lines.insert(0, text(ctx, call))
    parent = ctx.source.parents[ctx.source.parents[call]]
    same_line = getattr(parent, "lineno", None) == call.lineno
    return ("; " if same_line else f"\n{' ' * start_of(call)[1]}").join(lines) or None


def reads_training_first(kind: type | None) -> bool:
    """Return whether a class reads `self.training` and none of its base classes do."""
    return kind is not None and _reads_training(kind) and not any(map(_reads_training, kind.__mro__[1:]))


def _reads_training(kind: type) -> bool:
    if not defined_by_user(kind) or of_runtime(kind):
        return False
    _, node = definition(kind)
    return any(isinstance(child, ast.Attribute) and child.attr == "training" for child in ast.walk(node))


def registered_buffer(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    name = call.args[0] if call.args else named["name"]
    value = call.args[1] if len(call.args) > 1 else named.get("tensor")
    if value is None or _is_none(value):
        return _set(ctx, func, name, "nnx.data(None)")
    persistent = named.get("persistent", call.args[2] if len(call.args) > 2 else None)
    if isinstance(persistent, ast.Constant) and not persistent.value:
        return _set(ctx, func, name, text(ctx, value))
    return _set(ctx, func, name, f"nnx.Variable({text(ctx, value)})")


def registered_parameter(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    if len(call.args) != 2:
        raise Hole("give the name and the parameter by their places")
    name, value = call.args
    return _set(ctx, func, name, "nnx.data(None)" if _is_none(value) else text(ctx, value))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _set(ctx: Context, func: ast.Attribute, name: ast.expr, value: str) -> str:
    owner = text(ctx, func.value)
    if isinstance(name, ast.Constant):
        return f"{owner}.{name.value!s} = {value}"
    return f"setattr({owner}, {text(ctx, name)}, {value})"
