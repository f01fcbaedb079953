"""Caches and modes: methods `train` that only empty caches, or do what nn.Module's does."""

from __future__ import annotations

import ast
import copy
from typing import Any

from torch import nn

from ..reading.source import Function
from .context import Context
from .memory import decided, stored


def is_kept(ctx: Context, target: ast.expr) -> bool:
    """Return whether a list or dict is a module's attribute, which outlives the call."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and ctx.is_module(target.value)


def only_empties_caches(ctx: Context, node: Function) -> bool:
    """Return whether a method `train` only empties caches and calls nn.Module's, in the lines that ran."""

    def empties(statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            if decided(ctx, statement) is False:
                return True
            blocks = [block for block in (statement.body, statement.orelse) if block and ctx.ran(block[0])]
            return all(empties(child) for block in blocks for child in block)
        if isinstance(statement, ast.Assign):
            return stored(ctx, statement) is not None
        written = ast.unparse(statement)
        return written.startswith("super().train(") or written in (
            "return self",
            "return super().train(mode)",
        )

    return node.name == "train" and all(map(empties, node.body[ast.get_docstring(node) is not None :]))


def only_sets_modes(ctx: Context, node: Function) -> bool:
    """Return whether a method `train` did what nn.Module's does, to all modules of the example."""
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name) and child.id == "self"]
    modules = {id(module): module for name in names for module in ctx.modules(name)}
    return node.name == "train" and bool(modules) and all(map(_sets_modes, modules.values()))


def _sets_modes(module: nn.Module) -> bool:
    copied = copy.deepcopy(module)
    before = _state(copied)
    for mode in (False, True):
        copied.train(mode)
        if _state(copied) != before or any(child.training is not mode for child in copied.modules()):
            return False
    return True


def _state(module: nn.Module) -> list[Any]:
    """Return all that modules hold but their modes, by identity, and which parameters are trained."""
    attributes = [
        {name: id(value) for name, value in vars(child).items() if name != "training"}
        for child in module.modules()
    ]
    return [*attributes, *(parameter.requires_grad for parameter in module.parameters())]
