"""Stopping: values that are assigned, returned or stored under `torch.no_grad()` carry no gradient.

JAX has no such context; each value that leaves it is wrapped in `jax.lax.stop_gradient`.
"""

from __future__ import annotations

import ast
import copy
from typing import Self

import torch

from ..reading.source import Function
from .pairs import Pairs
from .words import Hole

NO_GRAD = ("no_grad", "inference_mode")
STOPS = "gradients stop here"


class Stopping(Pairs):
    """Translates values that are assigned, returned or stored."""

    stops = False
    """Whether this translates such a context or function."""

    def stopping(self) -> Self:
        copied = copy.copy(self)
        copied.stops = True
        return copied

    def value(self, node: ast.expr) -> str:
        """Write a value that is assigned, stored or returned."""
        if self.stops and isinstance(node, ast.Tuple):
            return self.spliced(node, lambda part: self.value(part))  # type: ignore[arg-type]
        return self.stopped(node, self.text(node))

    def stopped(self, node: ast.expr, written: str) -> str:
        """Stop the gradient of a computed value; names and attributes keep theirs."""
        if not self.stops or isinstance(node, ast.Name | ast.Attribute | ast.Constant):
            return written
        return f"jax.lax.stop_gradient({written})" if self._carries(node) else written

    def _carries(self, node: ast.expr) -> bool:
        """Return whether a value can have a gradient."""
        site = self.site(node)
        if site is None:
            return True
        floating = any(dtype.is_floating_point for dtype in site.types)
        return floating or any(issubclass(kind, tuple | list | dict) for kind in site.kinds - {torch.Size})

    def check_stopping(self, node: ast.stmt) -> None:
        """Refuse changes of a local array in place: in torch they keep its earlier gradient."""
        changes = isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and node.value.func.attr.endswith("_")
        )
        if not (self.stops and changes):
            return
        target: ast.expr = node.target if isinstance(node, ast.AugAssign) else node.value.func  # type: ignore
        while isinstance(target, ast.Subscript | ast.Call) or (
            isinstance(target, ast.Attribute) and not self._is_module(target.value)
        ):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name) and self._named_tensor(target.id):
            raise Hole(STOPS)

    def _named_tensor(self, name: str) -> bool:
        """Return whether a variable of this name is a tensor anywhere in the file."""
        uses = (
            child for child in ast.walk(self.source.tree) if isinstance(child, ast.Name) and child.id == name
        )
        return any(map(self.is_tensor, uses))

    def stops_gradients(self, node: ast.expr) -> bool:
        """Return whether a context or a decorator is `torch.no_grad()`."""
        value = self.scope.value(node.func if isinstance(node, ast.Call) else node)
        return getattr(value, "__name__", "") in NO_GRAD and str(value.__module__).startswith("torch.")

    def decorated(self, node: Function) -> bool:
        return any(map(self.stops_gradients, node.decorator_list))
