"""Constructors: `super().__init__()`, attributes that Flax needs, registered buffers and parameters."""

from __future__ import annotations

import ast
from types import FunctionType, NoneType
from typing import Any

from torch import nn

from ..reading.runtime import of_runtime
from ..reading.scope import defined_by_user, definition
from ..reading.source import start_of
from .attributes import own_attribute
from .context import Context
from .drawing import STREAM, draws_first
from .expressions import argument, is_none, text
from .fragment import Hole

MODE = "self.deterministic = False"
"""NNX's counterpart of `self.training`, set by `train()` and `eval()`."""


def super_init(ctx: Context, call: ast.Call) -> str | None:
    """Write `super().__init__()`, unless nn.Module is the base, and the attributes that Flax needs."""
    kinds = ctx.kind.__mro__ if ctx.kind else ()
    base = next((base for base in kinds[1:] if "__init__" in vars(base)), None)
    # A base class without its own constructor could not set the mode that it reads.
    has_mode = reads_training_first(ctx.kind) or (base is nn.Module and any(map(_reads_training, kinds)))
    lines = [] if base is nn.Module else [text(ctx, call)]
    lines += [MODE] * has_mode + [STREAM] * draws_first(ctx, ctx.kind)
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


def chosen_forward(ctx: Context, node: ast.Assign) -> str | None:
    """Write a constructor's `self.forward = self.fused` as the method's name; None for another assignment."""
    if len(node.targets) > 1 or own_attribute(node.targets[0]) != "forward" or ctx.kind is None:
        return None
    name = own_attribute(node.value)
    base: Any = ctx.kind
    chosen = isinstance(getattr(base, name, None), FunctionType)
    if not chosen or base.forward is not nn.Module.forward or ctx.in_call(node):
        raise Hole("it replaces a module's forward by something else than a method of a class without one")
    return f"self.forward = {name!r}"


def calling_chosen(ctx: Context, node: ast.ClassDef) -> str:
    """Return the `__call__` of a class whose constructor chooses the method that is its forward, or ""."""
    choices = (child for child in ast.walk(node) if isinstance(child, ast.Assign))
    if ctx.kind is None or not any(own_attribute(choice.targets[0]) == "forward" for choice in choices):
        return ""
    indent = "\n" + " " * (2 * node.body[0].col_offset)
    return f"def __call__(self, *args, **kwargs):{indent}return getattr(self, self.forward)(*args, **kwargs)"


def registered_buffer(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    name = argument(call, 0, "name")
    assert name is not None
    return _set(ctx, func, name, _buffer(ctx, call, func, name))


def buffer_by_name(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    """Write `self.register_buffer(name, x)` in an expression, as the body of a lambda."""
    name = argument(call, 0, "name")
    assert name is not None
    return f"setattr({text(ctx, func.value)}, {text(ctx, name)}, {_buffer(ctx, call, func, name)})"


def _buffer(ctx: Context, call: ast.Call, func: ast.Attribute, name: ast.expr) -> str:
    value, persistent = argument(call, 1, "tensor"), argument(call, 2, "persistent")
    is_saved = not (isinstance(persistent, ast.Constant) and not persistent.value)
    if persistent and isinstance(name, ast.Constant) and (owners := ctx.modules(func.value)):
        saved = {name.value not in owner._non_persistent_buffers_set for owner in owners}
        if len(saved) > 1:
            raise Hole("it is saved in one module and not in another")
        is_saved = saved.pop()
    if value is None or is_none(value):
        return "nnx.data(None)"
    # torch does not save this buffer, so it is a plain array: a Variable would be part of the state.
    if not is_saved:
        return text(ctx, value)
    variable, site = f"nnx.Variable({text(ctx, value)})", ctx.site(value)
    if site and NoneType in site.kinds:  # of some modules, as the mask of a block that does not shift
        variable = f"nnx.data(None) if {text(ctx, value, 'a')} is None else {variable}"
    return variable


def registered_parameter(ctx: Context, call: ast.Call, func: ast.Attribute) -> str:
    if len(call.args) != 2:
        raise Hole("give the name and the parameter by their places")
    name, value = call.args
    return _set(ctx, func, name, "nnx.data(None)" if is_none(value) else text(ctx, value))


def _set(ctx: Context, func: ast.Attribute, name: ast.expr, value: str) -> str:
    owner = text(ctx, func.value)
    if isinstance(name, ast.Constant):
        return f"{owner}.{name.value!s} = {value}"
    return f"setattr({owner}, {text(ctx, name)}, {value})"
