"""Pairs: `x.max(1)`, `x.sort()` and `x.topk(2)` return values and indices; in JAX these are two calls.

If only one is used, as in `x.max(1)[0]` or `_, i = x.max(1)`, that one is written. If both are, the tensor
must be a name, so that nothing is computed twice.
"""

from __future__ import annotations

import ast

from ..rules import PAIRS
from .calls import Calls
from .words import Hole

CHOSEN = {0: "values", 1: "indices", -1: "indices"}


class Pairs(Calls):
    """Translates calls that return values and indices."""

    def _expr_attribute(self, node: ast.Attribute) -> str:
        if node.attr in CHOSEN.values() and isinstance(node.value, ast.Call):
            written = self._chosen(node.value, node.attr)
            if written is not None:
                return written
        return super()._expr_attribute(node)

    def _expr_subscript(self, node: ast.Subscript) -> str:
        index = _constant(node.slice)
        if index in CHOSEN and isinstance(node.value, ast.Call):
            written = self._chosen(node.value, CHOSEN[index])
            if written is not None:
                return written
        return super()._expr_subscript(node)

    def pair(self, node: ast.Assign) -> str | None:
        """Write `values, indices = x.max(1)`; None for any other assignment."""
        target, call = node.targets[0], node.value
        if not (isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(call, ast.Call)):
            return None
        if self._pair_of(call) is None:
            return None
        assigned = [
            (self.text(name), self._chosen(call, CHOSEN[index]))
            for index, name in enumerate(target.elts)
            if not (isinstance(name, ast.Name) and name.id == "_")
        ]
        name, owner, _ = self._pair_of(call)  # type: ignore[misc]
        if len(assigned) > 1 and name == "topk":
            return f"{', '.join(name for name, _ in assigned)} = {str(assigned[0][1]).removesuffix('[0]')}"
        if len(assigned) > 1 and not isinstance(owner, ast.Name):
            raise Hole("it gives values and places; with a name for the tensor it can be said")
        return f"{', '.join(name for name, _ in assigned)} = {', '.join(str(text) for _, text in assigned)}"

    def _chosen(self, call: ast.Call, field: str) -> str | None:
        call_parts = self._pair_of(call)
        if call_parts is None:
            return None
        name, owner, inner = call_parts
        if name == "topk" and not self._along_last(owner, inner):
            raise Hole("jax.lax.top_k looks along the last axis alone")
        return self._ruled(inner, PAIRS[f"{name}.{field}"], f"the {field} of {name}", owner)

    def _along_last(self, owner: ast.expr, call: ast.Call) -> bool:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        axis_node = named.get("dim", call.args[1] if len(call.args) > 1 else None)
        if axis_node is None:
            return True
        site, axis = self.site(owner), _constant(axis_node)
        return axis == -1 or bool(site and site.axes and all(axes - 1 == axis for axes in site.axes))

    def _pair_of(self, call: ast.Call) -> tuple[str, ast.expr, ast.Call] | None:
        """Return the function's name, the tensor, and the call without the tensor."""
        if not self.is_pair(call):
            return None
        func = call.func
        if isinstance(func, ast.Attribute) and self.is_tensor(func.value):
            return func.attr, func.value, call
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        inner = ast.copy_location(ast.Call(func, call.args[1:], call.keywords), call)
        return (name, call.args[0], inner) if call.args and f"{name}.values" in PAIRS else None


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
