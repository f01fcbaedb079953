"""Axes: the effect of an expression on the axes of its images.

An effect lists the expressions that share one order of axes, and the changes to the text if that order is
[N, H, W, C]. Images that it does not list are transposed back, so expressions without a rule are correct as
well.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from ..reading.scope import UNKNOWN, Scope, is_layer, is_torchs, rule_name
from ..reading.source import Source
from . import order, tables
from .flow import AXES, Flow

ONE_BY_ONE = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.BitAnd, ast.BitOr, ast.BitXor),
)
"""Elementwise operators."""


class Unsafe(Exception):
    """The reason why a module is not rewritten."""


@dataclasses.dataclass(frozen=True)
class Effect:
    joined: Sequence[ast.AST] = ()  # images in one order of axes
    free: Sequence[ast.AST] = ()  # operands whose order does not matter
    edits: Mapping[ast.AST, Sequence[order.Part]] = dataclasses.field(default_factory=dict)
    lifted: Sequence[ast.AST] = ()  # operands [C, 1, 1] of an operation with an image
    refused: Sequence[ast.AST] = ()  # cannot have their channels last
    image: bool = False  # whether the operation exists only for images


@dataclasses.dataclass
class Axes:
    flow: Flow
    source: Source
    scope: Scope

    def images(self, node: ast.AST) -> set[int]:
        return self.flow.at.get(self.source.key(node), set())

    def images_within(self, node: ast.AST) -> set[int]:
        """Return the images that an expression evaluated to, itself or in a list."""
        return self.images(node) | self.flow.within.get(self.source.key(node), set())

    def operands(self, node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword | ast.Starred):
                yield from order.parts_of(child.value)
            elif isinstance(node, ast.Call) and child is node.func:
                yield from [child.value] if isinstance(child, ast.Attribute) else []
            elif isinstance(child, ast.expr):
                yield from order.parts_of(child)

    def effect(self, node: ast.AST) -> Effect | None:
        """Return the effect of an expression; None if it passes its operands on."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            elementwise = isinstance(node.op, ONE_BY_ONE)
            return self._one_by_one(node, [node.left, node.right]) if elementwise else Effect()
        if isinstance(node, ast.Compare):
            if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
                return Effect(free=[node.left, *node.comparators])
            return self._one_by_one(node, [node.left, *node.comparators])
        if isinstance(node, ast.UnaryOp):
            negated = isinstance(node.op, ast.Not)
            return Effect(free=[node.operand]) if negated else Effect([node.operand, node])
        if isinstance(node, ast.Subscript):
            return self._subscript(node) if self._is_tensor(node.value) else None
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.FormattedValue):
            return Effect(free=[node.value])
        return self._statement(node)

    def _statement(self, node: ast.AST) -> Effect | None:
        if isinstance(node, ast.AugAssign):
            return self._changed(node)
        if isinstance(node, ast.For | ast.comprehension):  # along torch's first axis
            return Effect() if self.images(node.iter) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Subscript) and self._is_tensor(target.value):
                return Effect(refused=[target.value])
            if isinstance(target, ast.Tuple | ast.List) and self.images(node.value):
                return Effect()
        return None

    def _changed(self, node: ast.AugAssign) -> Effect:
        """`x += y`: its x has no recorded value; uses elsewhere in the function do."""
        target = node.target
        if not isinstance(target, ast.Name):
            changed = [target.value] if isinstance(target, ast.Subscript) else []
            return Effect(refused=[node.value, *changed])
        function = self.source.around(node)
        names = [child for child in ast.walk(function or node) if isinstance(child, ast.Name)]
        same = [name for name in names if name.id == target.id and self.images(name)]
        return self._one_by_one(same[0], [*same, node.value]) if same else Effect()

    def _one_by_one(self, node: ast.AST, operands: Iterable[ast.AST]) -> Effect:
        """Return an elementwise effect; a smaller operand broadcasts along the last axes."""
        operands = list(operands)
        images = [operand for operand in operands if self.images(operand)]
        smaller = [operand for operand in operands if not self.images(operand) and self._ranks(operand) - {0}]
        # Broadcasting aligns the last axes: [C, 1, 1] can become [1, 1, C], but [H, W] and [W], which torch
        # aligns with space, would meet the channels.
        if any(self._ranks(operand) != {AXES - 1} for operand in smaller):
            return Effect()
        return Effect([*images, node], lifted=smaller)

    def _attribute(self, node: ast.Attribute) -> Effect | None:
        if not self._is_tensor(node.value):
            keys = {self.flow.first[number] for number in self.images(node)}
            stored = any(key is not None and key[-1] == "Attribute" for key in keys)
            return Effect() if stored else None  # an attribute keeps torch's axes
        parent = self.source.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            return None  # a method: the effect is its call's
        if node.attr == "shape":
            return self._shape(node, node.value)
        if node.attr in ("data", "real", "imag"):
            return Effect([node.value, node])
        return Effect(free=[node.value] if node.attr in tables.LAYOUT_FREE else [])

    def _call(self, node: ast.Call) -> Effect | None:
        if isinstance(node.func, ast.Attribute) and self._is_tensor(node.func.value):
            return self._by_name(node, node.func.attr, [node.func.value, *node.args])
        objects = self._callees(node)
        layers = [callee for callee in objects if isinstance(callee, nn.Module) or _is_forward(callee)]
        if layers:
            return self._layers(node, layers)
        functions = [callee.func if isinstance(callee, partial) else callee for callee in objects]
        if any(rule_name(function) or is_torchs(function) for function in functions):
            return self._functions(node, functions, partly=functions != objects)
        builtins = [callee for callee in objects if isinstance(callee, type | BuiltinFunctionType)]
        if any(callee in tables.BUILTINS for callee in builtins):
            return Effect(free=list(self.operands(node)))
        if any(callee is sum for callee in objects):
            return Effect([*node.args, node])
        return self._one_by_one(node, node.args) if any(callee is abs for callee in objects) else None

    def _callees(self, node: ast.Call) -> list[Any]:
        """Return the recorded callables of a call or, if it did not run, the value of the name."""
        site = self.flow.site(self.source, node.func)
        value = self.scope.value(node.func)
        return list(site.objects.values()) if site else [] if value is UNKNOWN else [value]

    def _functions(self, node: ast.Call, functions: Sequence[Any], partly: bool) -> Effect | None:
        """`partly`: a partial binds arguments."""
        # The function that is passed has probes of its own.
        if any(isinstance(function, FunctionType) and _takes_function(function) for function in functions):
            return None
        names = {str(getattr(function, "__name__", "")) for function in functions}
        if names <= tables.ELEMENTWISE:
            return self._one_by_one(node, [*node.args, *(keyword.value for keyword in node.keywords)])
        if len(names) == 1 and not partly:
            return self._by_name(node, names.pop(), list(node.args))
        if names & tables.IMAGES:
            raise Unsafe(f"{self.source.place(node)}: {' and '.join(sorted(names))} in one line")
        return Effect()

    def _layers(self, node: ast.Call, layers: Sequence[Any]) -> Effect | None:
        image_modules = self.flow.with_images
        kinds = {
            kind_of(layer)
            for layer in layers
            if not isinstance(layer, nn.Module) or id(layer) in image_modules
        }
        tabulated = tables.IMAGE_LAYERS | tables.ELEMENTWISE_LAYERS | tables.CONTAINERS | {""}
        if kinds <= tabulated:
            # Modules are joined by their recorded calls (`plan._layers`); `super().forward` runs without one.
            forwards = [layer for layer in layers if not isinstance(layer, nn.Module)]
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            return Effect([*arguments, node], image=bool(kinds & tables.IMAGE_LAYERS)) if forwards else None
        if kinds & tabulated:
            kinds_text = " and ".join(sorted(kinds - {""}))
            raise Unsafe(f"{self.source.place(node)}: {kinds_text} in one line")
        return Effect()

    def _by_name(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> Effect:
        named = {argument.arg: argument.value for argument in node.keywords if argument.arg}
        plain = name.removesuffix("_") if not name.endswith("__") else name
        starred = any(isinstance(argument, ast.Starred) for argument in arguments)
        effect = Effect() if starred else self._tabulated(node, plain, arguments, named)
        if plain != name and node not in effect.joined:
            return Effect(refused=arguments[:1])  # in place: a transposed copy would be changed instead
        return effect

    def _tabulated(
        self, node: ast.Call, plain: str, arguments: list[ast.expr], named: dict[str, ast.expr]
    ) -> Effect:
        """Look the effect up in `tables`; images of unlisted functions are transposed back."""
        if plain in tables.IMAGES:
            first = arguments[:1] or [named["input"]]
            return Effect([*first, node], image=True)
        if plain == "size":
            axis = arguments[1] if len(arguments) > 1 else named.get("dim")
            return self._shape(node, arguments[0]) if axis is None else self._edited([arguments[0]], [axis])
        if plain in tables.LAYOUT_FREE:
            return Effect(free=arguments[:1])
        if plain == "pad":
            return self._pad(node, arguments, named)
        pair = plain in ("max", "min") and len(arguments) > 1 and self._ranks(arguments[1])
        if plain in tables.ELEMENTWISE or pair:
            return self._one_by_one(node, [*arguments, *named.values()])
        if plain in tables.ALONG:
            return self._along(node, plain, arguments, named)
        return Effect()

    def _along(
        self, node: ast.Call, name: str, arguments: list[ast.expr], named: dict[str, ast.expr]
    ) -> Effect:
        position = tables.ALONG[name]
        axis = named.get("dim", named.get("dims", arguments[position] if len(arguments) > position else None))
        first = arguments[:1] or [named[keyword] for keyword in ("tensors", "input") if keyword in named]
        if axis is None and name in tables.REDUCING - {"argmax", "argmin"}:
            return Effect(free=first)
        if axis is None:
            return Effect([*first, node] if name in tables.ROWS else [])
        # var(dim, unbiased, keepdim): the argument after the axes is not keepdim here.
        if name in ("var", "std") and len(arguments) > position + 1:
            return Effect()
        several = arguments[position:] if name == "flip" and len(arguments) > position + 1 else [axis]
        axes: list[int] = []
        for axis_node in several:
            listed = order.axes_of(axis_node)
            if listed is None:
                return Effect()
            axes += listed
        effect = self._edited(first, several)
        if name not in tables.REDUCING:
            return dataclasses.replace(effect, joined=[*effect.joined, node])
        # The rank of the result depends on keepdim, so it must be a literal.
        keepdim = named.get("keepdim", arguments[position + 1] if len(arguments) > position + 1 else None)
        if keepdim is not None and not isinstance(keepdim, ast.Constant):
            return Effect()
        if keepdim is not None and keepdim.value:
            return dataclasses.replace(effect, joined=[*effect.joined, node])
        return effect if order.same_order({*range(AXES)} - {*axes}) else Effect()

    def _edited(self, joined: Sequence[ast.AST], axes: Iterable[ast.expr]) -> Effect:
        edits: dict[ast.AST, Sequence[order.Part]] = {}
        for node in axes:
            listed = order.axes_of(node)
            if listed is None:
                return Effect()
            edits[node] = (order.written(node, [order.LAST[axis] for axis in listed]),)
        return Effect(joined, edits=edits)

    def _pad(self, node: ast.Call, arguments: list[ast.expr], named: dict[str, ast.expr]) -> Effect:
        """`pad` lists the last axes first: channels get (0, 0)."""
        sizes = arguments[1] if len(arguments) > 1 else named.get("pad")
        if not isinstance(sizes, ast.Tuple | ast.List) or len(sizes.elts) not in (2, 4):
            return Effect()
        opening, closing = "()" if isinstance(sizes, ast.Tuple) else "[]"
        parts = [part for size in sizes.elts for part in (", ", size)]
        return Effect([arguments[0], node], edits={sizes: (f"{opening}0, 0", *parts, closing)})

    def _shape(self, node: ast.AST, owner: ast.AST) -> Effect:
        """Edit `x.shape[1]`, `x.shape[2:]`, `B, C, H, W = x.shape`; elsewhere shapes keep torch's order."""
        parent = self.source.parents[node]
        if isinstance(parent, ast.Subscript) and parent.value is node:
            index = parent.slice
            if isinstance(index, ast.Slice):
                text = order.slice_of(index)
                return Effect([owner], edits={index: (text,)}) if text is not None else Effect()
            return self._edited([owner], [index])
        if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
            target = parent.targets[0]
            if isinstance(target, ast.Tuple) and (names := order.four_names(target)):
                parts: list[order.Part] = []
                for axis in order.ORDER:
                    parts += [names[axis], ", "]
                return Effect([owner], edits={target: parts[:-1]})
        free = isinstance(parent, ast.Call) and self.scope.value(parent.func) is len
        return Effect(free=[owner]) if free else Effect()

    def _subscript(self, node: ast.Subscript) -> Effect:
        """Reorder the parts of `x[:, :c]`."""
        if not self.images(node.value):
            return Effect()
        indices = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        # None is a whole axis, `:`.
        parts: list[ast.expr | None] = []
        for index in indices:
            if isinstance(index, ast.Constant) and index.value is ...:
                parts += [None] * (AXES - len(indices) + 1)
            elif isinstance(index, ast.Slice) or _is_number(index, self):
                parts.append(None if isinstance(index, ast.Slice) and _is_all(index) else index)
            else:
                return Effect()
        parts += [None] * (AXES - len(parts))
        kept_axes = {axis for axis, part in enumerate(parts) if part is None or isinstance(part, ast.Slice)}
        if len(parts) != AXES or not order.same_order(kept_axes):
            return Effect()
        joined: list[ast.AST] = [node.value, node] if len(kept_axes) == AXES else [node.value]
        return Effect(joined, edits={node.slice: order.ordered([parts[axis] for axis in order.ORDER])})

    def _is_tensor(self, node: ast.AST) -> bool:
        site = self.flow.site(self.source, node)
        return bool(site and site.is_tensor)

    def _ranks(self, node: ast.AST) -> set[int]:
        site = self.flow.site(self.source, node)
        return site.axes if site else set()


def kind_of(module: Any) -> str:
    """Return the torch layer whose `forward` a module inherits; "" if its class defines `forward`."""
    if not isinstance(module, nn.Module):
        return str(module.__qualname__).partition(".")[0]
    owner = next(base for base in type(module).__mro__ if "forward" in vars(base))
    layer = next((base for base in type(module).__mro__ if is_layer(base)), nn.Module)
    return layer.__name__ if is_torchs(owner) else ""


def _is_forward(value: Any) -> bool:
    value = value.__func__ if isinstance(value, MethodType) else value
    return isinstance(value, FunctionType) and value.__name__ == "forward" and is_torchs(value)


def _takes_function(function: FunctionType) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == "function"


def _is_all(node: ast.Slice) -> bool:
    return node.lower is None and node.upper is None and node.step is None


def _is_number(node: ast.expr, axes: Axes) -> bool:
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(number, ast.Constant):
        return type(number.value) is int
    site = axes.flow.site(axes.source, node)
    return bool(site and site.kinds == {int})
