"""Conditions and indices, where Python reads a tensor's numbers; JAX cannot while it compiles.

With `if x:`, `int(x)`, `range(n)`, `x[:n]` or `x[mask]`, control flow or shapes would depend on data.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ..reading.scope import UNKNOWN
from .words import Hole, Words

TAKING = ("int", "float", "bool", "complex", "range", "max", "min", "any", "all", "sorted", "divmod")
"""Functions of Python that read a tensor's numbers."""
_TAKING = {id(getattr(builtins, name)) for name in TAKING}
DECIDES = "it decides by data"
SHAPE = "its shape depends on data"


class Deciding(Words):
    """Translates conditions and indices."""

    def test(self, node: ast.expr) -> str:
        """Write the condition of an `if`, a `while` or an `assert`."""
        return self.hole(node, DECIDES) if self.is_tensor(node) else self.text(node)

    def _expr_ifexp(self, node: ast.IfExp) -> str:
        return self._undecided(node, node.test)

    def _expr_boolop(self, node: ast.BoolOp) -> str:
        return self._undecided(node, *node.values)

    def _expr_unaryop(self, node: ast.UnaryOp) -> str:
        if not isinstance(node.op, ast.Not):
            return self.spliced(node)
        if isinstance(node.operand, ast.Attribute):
            written = self.text(node.operand)
            if written.startswith("not "):
                return written.removeprefix("not ")
        return self._undecided(node, node.operand)

    def _expr_compare(self, node: ast.Compare) -> str:
        operands = [node.left, *node.comparators]
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops):
            return self._undecided(node, *operands)
        if len(node.ops) > 1:
            return self._undecided(node, *operands)
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and any(map(self._is_type, operands)):
            sign = "==" if isinstance(node.ops[0], ast.Is) else "!="  # jnp.float32 is not x.dtype itself
            return f"{self.text(node.left)} {sign} {self.text(node.comparators[0])}"
        return self.spliced(node)

    def _is_type(self, node: ast.expr) -> bool:
        site = self.site(node)
        return isinstance(self.scope.value(node), torch.dtype) or bool(site and torch.dtype in site.kinds)

    def _undecided(self, node: ast.expr, *parts: ast.expr) -> str:
        if any(map(self.is_tensor, parts)):
            raise Hole(DECIDES)
        return self.spliced(node)

    def check_python(self, node: ast.Call) -> None:
        """Refuse `int(x)` and similar calls on a tensor."""
        value = self.scope.value(node.func)
        if value is UNKNOWN or not (id(value) in _TAKING or self._of_numbers(node.func)):
            return
        if any(map(self.is_tensor, _arguments(node))):
            raise Hole("it takes a number out of a tensor")

    def _of_numbers(self, func: ast.expr) -> bool:
        """Return whether a function is from `math` or NumPy."""
        while isinstance(func, ast.Attribute):
            func = func.value
        return self.scope.value(func) in (math, np)

    def _expr_subscript(self, node: ast.Subscript) -> str:
        written = self.text(node.value)
        if not self.is_tensor(node.value):
            return self.spliced(node)
        if any(map(self.is_mask, places_of(node.slice))) or self._cut_by_data(node):
            raise Hole(SHAPE)
        if any(map(self.is_tensor, places_of(node.slice))):
            code = " ".join(self.source.segment(node).split())
            outside = "an index outside of the array raises in torch; JAX takes the nearest one"
            self.needs.note(f"{self.source.place(node)}: {code}: {outside}")
        if written.endswith("[...]"):
            return f"{written[:-5]}[{self.index(node.slice)}]"
        return self.spliced(node, lambda part: self.index(part) if part is node.slice else self.text(part))

    def index(self, node: ast.AST) -> str:
        """Write an index; lists become arrays."""
        if isinstance(node, ast.Tuple) and not self.needs.rewritten(self.source, node):
            return self.spliced(node, self.index)
        site = self.site(node)
        listed = isinstance(node, ast.List | ast.ListComp) or bool(site and site.kinds == {list})
        return f"jnp.array({self.text(node)})" if listed else self.text(node)

    def _cut_by_data(self, node: ast.Subscript) -> bool:
        ends = [
            bound for part in places_of(node.slice) if isinstance(part, ast.Slice) for bound in _ends(part)
        ]
        return any(map(self.is_tensor, ends))

    def is_mask(self, node: ast.AST) -> bool:
        site = self.site(node)
        return bool(site and site.types & {torch.bool, torch.uint8})

    def is_array(self, node: ast.AST) -> bool:
        """Return whether an index selects several elements, possibly with repetition."""
        site = self.site(node)
        return isinstance(node, ast.List) or bool(site and (site.is_tensor or site.kinds & {list}))


def places_of(node: ast.expr) -> list[ast.expr]:
    """Return the indices of the individual axes."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _ends(node: ast.Slice) -> list[ast.expr]:
    return [bound for bound in (node.lower, node.upper, node.step) if bound is not None]


def _arguments(node: ast.Call) -> Iterator[ast.expr]:
    arguments: Iterable[ast.expr] = [*node.args, *(argument.value for argument in node.keywords)]
    for argument in arguments:
        yield argument
        if isinstance(argument, ast.GeneratorExp | ast.ListComp | ast.List | ast.Tuple):
            yield from getattr(argument, "elts", None) or [argument.elt]  # type: ignore[union-attr]
