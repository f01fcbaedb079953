"""Recompile some of torch's functions from their source, with the tensors' device replaced by a constant.

`Broadcast`, `ReduceAddCoalesced`, `Gather` and `Scatter` read each tensor's device, and refuse the CPU.
Attributes of a tensor cannot be patched, so the expressions are replaced: `tensor.device.type` becomes
"cuda" and `tensor.get_device()` becomes 0. Everything else is torch's text.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from ._tested import UnsupportedTorch


@cache
def on_first_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, recompiled so that its tensors appear to be on device 0."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    answer = _Answer()
    answer.visit(tree)
    if not answer.replaced:
        raise UnsupportedTorch(f"question about a tensor's device in {function.__qualname__}")
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list.clear()
    # Tracebacks then still point at the line of torch's file.
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec")
    scope: dict[str, Callable[..., Any]] = {}
    exec(code, function.__globals__, scope)
    return scope[function.__name__]


class _Answer(ast.NodeTransformer):
    replaced = 0

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node:
            case ast.Attribute(value=ast.Attribute(attr="device"), attr="type"):
                return self._constant(node, "cuda")
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Attribute(attr="get_device"), args=[], keywords=[]):
                return self._constant(node, 0)
        self.generic_visit(node)
        return node

    def _constant(self, node: ast.expr, value: str | int) -> ast.expr:
        self.replaced += 1
        return ast.copy_location(ast.Constant(value), node)
