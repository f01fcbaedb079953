"""Assignments to attributes, to parts of arrays, and in place.

JAX's arrays are immutable: `x[0] = y` is `x = x.at[0].set(y)`, and a module's own array is
replaced as a whole.
"""

from __future__ import annotations

import ast
from types import FunctionType

from torch import nn

from ..reading.effects import changed
from ..reading.scope import definition, has_definition
from ..reading.source import Function, end_of, start_of
from .deciding import SHAPE, places_of
from .precedence import grouped
from .stopping import Stopping
from .words import Hole, kept_tensors

AT = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**"}
PART = "it changes a part of an array in place"
KEEPS = "it keeps an array in the module, which a compiled step would forget"
KEEPING = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault")
PARTS = {"zero_": "set", "fill_": "set", "copy_": "set", "add_": "add", "mul_": "multiply"}
"""In-place methods, and the method of `.at[...]` that applies them to a part of an array."""


class Assignments(Stopping):
    """Translates assignments."""

    def _buffer(self, call: ast.Call, func: ast.Attribute) -> str:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        name = call.args[0] if call.args else named["name"]
        value = call.args[1] if len(call.args) > 1 else named.get("tensor")
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return self._set(func, name, "nnx.data(None)")
        persistent = named.get("persistent", call.args[2] if len(call.args) > 2 else None)
        if isinstance(persistent, ast.Constant) and not persistent.value:
            return self._set(func, name, self.text(value))
        return self._set(func, name, f"nnx.Variable({self.text(value)})")

    def _registered(self, call: ast.Call, func: ast.Attribute) -> str:
        if len(call.args) != 2:
            raise Hole("give the name and the parameter by their places")
        name, value = call.args
        none = isinstance(value, ast.Constant) and value.value is None
        return self._set(func, name, "nnx.data(None)" if none else self.text(value))

    def _set(self, func: ast.Attribute, name: ast.expr, value: str) -> str:
        owner = self.text(func.value)
        if isinstance(name, ast.Constant):
            return f"{owner}.{name.value!s} = {value}"
        return f"setattr({owner}, {self.text(name)}, {value})"

    def _in_place(self, call: ast.Call, func: ast.Attribute) -> str:
        """Write `x.add_(y)` as `x = x + y`; a module's own array is replaced."""
        name, target = func.attr, func.value
        if isinstance(target, ast.Subscript) and name in PARTS:
            value = self.value(call.args[0]) if call.args else "0"
            return self._set_at(target, PARTS[name], value)
        if name == "copy_" and len(call.args) == 1:
            value = self.value(call.args[0])
        elif name in ("zero_", "fill_"):
            fill = self.text(call.args[0]) if call.args else "0"
            value = f"jnp.full_like({self.text(target)}, {fill})"
        else:
            value = self.stopped(call, self.text(call))
        return f"{self._stored(_changed(target))} = {value}"

    def rebound(self, node: ast.stmt) -> str | None:
        """Return the variable that `f(x)` changes in place and returns, for `x = f(x)`.

        Raises:
          Hole: the function does not return it, or it is not a variable.
        """
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return None
        for target in self._targets(call):
            if not isinstance(target, FunctionType) or not has_definition(target):
                continue
            function = definition(target)[1]
            assert isinstance(function, Function)
            arguments = self._given(call, function)
            for name, returned in changed(function).items():
                value = arguments.get(name)
                if value is None or not (self.is_tensor(value) or self.site(value) is None):
                    continue
                if returned and isinstance(value, ast.Name):
                    return value.id
                raise Hole(f"it changes its argument {name} in place")
        return None

    def _given(self, call: ast.Call, function: Function) -> dict[str, ast.expr]:
        """Return the arguments of a call by the function's parameter names."""
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        method = isinstance(call.func, ast.Attribute) and self._is_module(call.func.value)
        by_place = dict(zip(names[method:], call.args, strict=False))
        return {**by_place, **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}}

    def _stored(self, target: ast.expr) -> str:
        if isinstance(target, ast.Name):
            return target.id
        written = self.text(target)
        if isinstance(target, ast.Attribute) and written.endswith("[...]"):
            return written
        raise Hole(PART)

    def _set_at(self, target: ast.Subscript, verb: str, value: str) -> str:
        written = self.text(target.value)
        if not (isinstance(target.value, ast.Name) or written.endswith("[...]")):
            raise Hole(PART)
        indices = places_of(target.slice)
        if any(map(self.is_mask, indices)):
            return f"{written} = {self._where(target, written, verb, value)}"
        at = self.index(target.slice)
        if verb != "set" and any(map(self.is_array, indices)):
            # torch changes an index that appears twice once; `.at[].add` would change it twice.
            return f"{written} = {written}.at[{at}].set({written}[{at}] {SIGNS[verb]} {grouped(value)})"
        return f"{written} = {written}.at[{at}].{verb}({value})"

    def _where(self, target: ast.Subscript, written: str, verb: str, value: str) -> str:
        """Write `x[mask] = 0`; where values of an array would go depends on data."""
        of_tensor, of_mask = self.site(target.value), self.site(target.slice)
        number = all(axes == 0 for axes in self._axes_of_value(target))
        if not (of_tensor and of_mask and of_tensor.axes == of_mask.axes and number):
            raise Hole(SHAPE)
        new = value if verb == "set" else f"{written} {SIGNS[verb]} {grouped(value)}"
        return f"jnp.where({self.text(target.slice)}, {new}, {written})"

    def _axes_of_value(self, target: ast.Subscript) -> set[int]:
        """Return the number of axes of the assigned value; none for a number."""
        statement = self.source.parents[target]
        assigned = getattr(statement, "value", None)
        site = self.site(assigned) if assigned is not None else None
        return site.axes if site else set()

    def _stmt_annassign(self, node: ast.AnnAssign) -> str:
        if node.value is None or not isinstance(node.target, ast.Attribute):
            return self.spliced(node)
        stored, _, value = self._set_attribute(node, node.target).partition(" = ")
        annotation = "" if stored.endswith("]") else f": {self.text(node.annotation)}"
        return f"{stored}{annotation} = {value}"

    def _set_attribute(self, node: ast.Assign | ast.AnnAssign, target: ast.Attribute) -> str:
        assert node.value is not None
        tied = self._tied(node, target)
        if tied:
            return tied
        if self.is_tensor(target.value):
            raise Hole(f"JAX's arrays have no {target.attr}")
        written = self.value(node.value)
        site = self.site(node.value)
        none = isinstance(node.value, ast.Constant) and node.value.value is None
        if none and self._assigned_again(target):
            written = "nnx.data(None)"
        elif site and site.kinds & {list} and not self._grows(target):
            written = self._tuple(node.value, written)
        elif site and site.kinds & {set} and not self._grows(target):
            written = "frozenset()" if written == "set()" else f"frozenset({written})"
        elif self._holds_tensor(target) and not written.startswith(("nnx.Param(", "nnx.Variable(")):
            return f"{self.text(target.value)}.{target.attr}[...] = {written}"
        elif (
            site
            and site.is_tensor
            and not self._in_constructor(node)
            and not written.startswith(("nnx.Param(", "nnx.Variable("))
        ):
            raise Hole(KEEPS)
        before = self.source.between(end_of(target), start_of(node.value))
        written = f"({written})" if "(" in before and "\n" in written else written
        return f"{self.text(target.value)}.{target.attr} = {written}"

    def _in_constructor(self, node: ast.AST) -> bool:
        return getattr(self.source.around(node), "name", "") == "__init__"

    def _tuple(self, value: ast.expr, written: str) -> str:
        """Write a list as a tuple: NNX puts static attributes into the key of a compiled program."""
        return self._as_tuple(value, written) if isinstance(value, ast.List) else f"tuple({written})"

    def _grows(self, target: ast.Attribute) -> bool:
        """Return whether the file changes a list attribute of this name."""
        return any(
            isinstance(child, ast.Attribute)
            and child.attr in ("append", "extend", "insert", "pop", "add", "update")
            and isinstance(child.value, ast.Attribute)
            and child.value.attr == target.attr
            for child in ast.walk(self.source.tree)
        )

    def _holds_tensor(self, target: ast.Attribute) -> bool:
        owner = self.site(target.value)
        modules = (
            [module for module in owner.objects.values() if isinstance(module, nn.Module)] if owner else []
        )
        return any(target.attr in kept_tensors(module) - {*module._parameters} for module in modules)

    def _assigned_again(self, target: ast.Attribute) -> bool:
        owner: ast.AST | None = target
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = self.source.parents.get(owner)
        stores = [
            child
            for child in ast.walk(owner or self.source.tree)
            if isinstance(child, ast.Attribute)
            and child.attr == target.attr
            and isinstance(child.ctx, ast.Store)
        ]
        return len(stores) > 1

    def _tied(self, node: ast.Assign | ast.AnnAssign, target: ast.Attribute) -> str | None:
        """Write `self.decoder.weight = self.embedding.weight`: one variable with two paths."""
        value = node.value
        if not (
            isinstance(value, ast.Attribute)
            and self._is_module(target.value)
            and self._is_module(value.value)
        ):
            return None
        target_text, value_text = self.text(_read(target)), None
        if not isinstance(target.value, ast.Attribute | ast.Subscript):
            return None
        value_text = self.text(value)
        for end in ("[...]", "[...].T"):
            if target_text.endswith(end) and value_text.endswith(end):
                return f"{target_text.removesuffix(end)} = {value_text.removesuffix(end)}"
        linear, embedding = sorted(
            (target.value, value.value), key=lambda layer: self._is(layer, nn.Embedding)
        )
        if (
            target.attr == value.attr == "weight"
            and self._is(linear, nn.Linear)
            and self._is(embedding, nn.Embedding)
        ):
            return f"{self.text(linear)} = nn.TiedLinear({self.text(linear)}, {self.text(embedding)})"
        raise Hole("these layers keep it in different forms; F.linear with the one weight can be ported")

    def _is(self, node: ast.expr, layer: type[nn.Module]) -> bool:
        site = self.site(node)
        return bool(site and site.kinds == {layer})

    def _stmt_augassign(self, node: ast.AugAssign) -> str:
        target, verb = node.target, AT.get(type(node.op))
        if isinstance(target, ast.Subscript) and self.is_tensor(target.value):
            if verb is None:
                raise Hole(PART)
            return self._set_at(target, verb, self.value(node.value))
        if isinstance(target, ast.Attribute) and self._holds_tensor(target):
            middle = self.source.between(end_of(target), start_of(node.value))
            return f"{self.text(target.value)}.{target.attr}[...]{middle}{self.value(node.value)}"
        if isinstance(target, ast.Attribute) and self._is_module(target.value) and self.in_call(node):
            raise Hole("it counts in the module, where a compiled step would not")
        return self.spliced(node)

    def keeps(self, target: ast.expr) -> bool:
        """Return whether a list or dict is a module's attribute, which outlives the call."""
        while isinstance(target, ast.Subscript):
            target = target.value
        return isinstance(target, ast.Attribute) and self._is_module(target.value)


def _changed(node: ast.expr) -> ast.expr:
    """Return `x` of `x.mul_(2).add_(1)`."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.endswith("_")
        and not node.func.attr.endswith("__")
    ):
        node = node.func.value
    return node


def _read(node: ast.Attribute) -> ast.Attribute:
    """Return the same attribute in a reading context."""
    copy = ast.Attribute(node.value, node.attr, ast.Load())
    return ast.copy_location(copy, node)
