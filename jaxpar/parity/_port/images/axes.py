"""Axes: what an expression does with the axes of the images in it.

The effect of each expression is independent of whether its images have their channels last in the end. It
names the expressions whose axes have one order, and says what changes in the text if that is [N, H, W, C].
Images that it does not name are turned back for it, so what no rule knows is right as well.
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

from ..reading.scope import UNKNOWN, Scope, is_layer, is_torchs, word_of
from ..reading.source import Source
from . import order, words
from .flow import AXES, Flow

ONE_BY_ONE = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.BitAnd, ast.BitOr, ast.BitXor),
)
"""Operators of single elements."""


class Unsafe(Exception):
    """Why a module is not rewritten."""


@dataclasses.dataclass(frozen=True)
class Effect:
    """What an expression does.

    Attributes:
      joined: expressions whose images have one order of axes.
      free: operands whose order it does not see.
      edits: what is written instead of a part, where the channels are last.
      lifted: operands [C, 1, 1] beside an image.
      refused: images that cannot have their channels last.
      image: whether it is made for images.
    """

    joined: Sequence[ast.AST] = ()
    free: Sequence[ast.AST] = ()
    edits: Mapping[ast.AST, Sequence[order.Part]] = dataclasses.field(default_factory=dict)
    lifted: Sequence[ast.AST] = ()
    refused: Sequence[ast.AST] = ()
    image: bool = False


@dataclasses.dataclass
class Axes:
    """Reads the expressions of a function."""

    flow: Flow
    source: Source
    scope: Scope

    def images(self, node: ast.AST) -> set[int]:
        """The images that an expression is."""
        return self.flow.at.get(self.source.key(node), set())

    def held(self, node: ast.AST) -> set[int]:
        """Those that it is or holds in a list."""
        return self.images(node) | self.flow.within.get(self.source.key(node), set())

    def operands(self, node: ast.AST) -> Iterator[ast.AST]:
        """The expressions that a node is given; of a list that is written in it, its elements."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword | ast.Starred):
                yield from order.parts_of(child.value)
            elif isinstance(node, ast.Call) and child is node.func:
                yield from [child.value] if isinstance(child, ast.Attribute) else []
            elif isinstance(child, ast.expr):
                yield from order.parts_of(child)

    def effect(self, node: ast.AST) -> Effect | None:
        """The effect of an expression; None if it passes on what it has."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._one_by_one(node, [node.left, node.right]) if _is(node.op, ONE_BY_ONE) else Effect()
        if isinstance(node, ast.Compare):
            if _is(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
                return Effect(free=[node.left, *node.comparators])
            return self._one_by_one(node, [node.left, *node.comparators])
        if isinstance(node, ast.UnaryOp):
            return Effect(free=[node.operand]) if _is(node.op, ast.Not) else Effect([node.operand, node])
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
        """`x += y`, where x is no expression that is read: what it is elsewhere in the function."""
        target = node.target
        if not isinstance(target, ast.Name):
            changed = [target.value] if isinstance(target, ast.Subscript) else []
            return Effect(refused=[node.value, *changed])
        function = self.source.around(node)
        names = [each for each in ast.walk(function or node) if isinstance(each, ast.Name)]
        same = [each for each in names if each.id == target.id and self.images(each)]
        return self._one_by_one(same[0], [*same, node.value]) if same else Effect()

    def _one_by_one(self, node: ast.AST, operands: Iterable[ast.AST]) -> Effect:
        """Elements with those in the same place; a smaller operand lies along the last axes."""
        operands = list(operands)
        images = [each for each in operands if self.images(each)]
        smaller = [each for each in operands if not self.images(each) and self._ranks(each) - {0}]
        if any(self._ranks(each) != {AXES - 1} for each in smaller):
            return Effect()
        return Effect([*images, node], lifted=smaller)

    def _attribute(self, node: ast.Attribute) -> Effect | None:
        if not self._is_tensor(node.value):
            places = {self.flow.first[each] for each in self.images(node)}
            stored = any(key is not None and key[-1] == "Attribute" for key in places)
            return Effect() if stored else None  # torch's axes, as it is kept
        parent = self.source.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            return None  # a method: its call has the effect
        if node.attr == "shape":
            return self._shape(node, node.value)
        if node.attr in ("data", "real", "imag"):
            return Effect([node.value, node])
        return Effect(free=[node.value] if node.attr in words.ASKING else [])

    def _call(self, node: ast.Call) -> Effect | None:
        if isinstance(node.func, ast.Attribute) and self._is_tensor(node.func.value):
            return self._word(node, node.func.attr, [node.func.value, *node.args])
        objects = self._called(node)
        layers = [each for each in objects if isinstance(each, nn.Module) or _is_forward(each)]
        if layers:
            return self._layers(node, layers)
        functions = [each.func if isinstance(each, partial) else each for each in objects]
        if any(word_of(each) or is_torchs(each) for each in functions):
            return self._functions(node, functions, partly=functions != objects)
        if any(each in words.BUILTINS for each in objects if isinstance(each, type | BuiltinFunctionType)):
            return Effect(free=list(self.operands(node)))
        if any(each is sum for each in objects):
            return Effect([*node.args, node])
        return self._one_by_one(node, node.args) if any(each is abs for each in objects) else None

    def _called(self, node: ast.Call) -> list[Any]:
        """What a call called: as was seen, or as the name says."""
        site = self.flow.site(self.source, node.func)
        value = self.scope.value(node.func)
        return list(site.objects.values()) if site else [] if value is UNKNOWN else [value]

    def _functions(self, node: ast.Call, functions: Sequence[Any], partly: bool) -> Effect | None:
        """Functions of torch, one or several in turn; `partly` if arguments stand elsewhere."""
        if any(isinstance(each, FunctionType) and _takes_function(each) for each in functions):
            return None
        names = {str(getattr(each, "__name__", "")) for each in functions}
        if names <= words.ELEMENTWISE:
            return self._one_by_one(node, [*node.args, *(each.value for each in node.keywords)])
        if len(names) == 1 and not partly:
            return self._word(node, names.pop(), list(node.args))
        if names & words.IMAGES:
            raise Unsafe(f"{self.source.place(node)}: {' and '.join(sorted(names))} in one line")
        return Effect()

    def _layers(self, node: ast.Call, layers: Sequence[Any]) -> Effect | None:
        """A call of modules, of one or of several in turn. What they do is known from their calls."""
        seen = self.flow.seeing_images
        kinds = {kind_of(each) for each in layers if not isinstance(each, nn.Module) or id(each) in seen}
        known = words.IMAGE_LAYERS | words.ELEMENTWISE_LAYERS | words.CONTAINERS | {""}
        if kinds <= known:
            forwards = [each for each in layers if not isinstance(each, nn.Module)]
            given = [*node.args, *(each.value for each in node.keywords)]
            return Effect([*given, node], image=bool(kinds & words.IMAGE_LAYERS)) if forwards else None
        if kinds & known:
            said = " and ".join(sorted(kinds - {""}))
            raise Unsafe(f"{self.source.place(node)}: {said} in one line")
        return Effect()

    def _word(self, node: ast.Call, name: str, given: list[ast.expr]) -> Effect:
        """A function of torch, or a method of a tensor."""
        named = {each.arg: each.value for each in node.keywords if each.arg}
        plain = name.removesuffix("_") if not name.endswith("__") else name
        starred = any(isinstance(each, ast.Starred) for each in given)
        found = Effect() if starred else self._known(node, plain, given, named)
        if plain != name and node not in found.joined:
            return Effect(refused=given[:1])  # it changes a tensor that is turned for it
        return found

    def _known(self, node: ast.Call, plain: str, given: list[ast.expr], named: dict[str, ast.expr]) -> Effect:
        """By the tables of `words`; images of what is in none of them are turned for it."""
        if plain in words.IMAGES:
            first = given[:1] or [named["input"]]
            return Effect([*first, node], image=True)
        if plain == "size":
            axis = given[1] if len(given) > 1 else named.get("dim")
            return self._shape(node, given[0]) if axis is None else self._edited([given[0]], [axis])
        if plain in words.ASKING:
            return Effect(free=given[:1])
        if plain == "pad":
            return self._pad(node, given, named)
        pair = plain in ("max", "min") and len(given) > 1 and self._ranks(given[1])
        if plain in words.ELEMENTWISE or pair:
            return self._one_by_one(node, [*given, *named.values()])
        if plain in words.ALONG:
            return self._along(node, plain, given, named)
        return Effect()

    def _along(self, node: ast.Call, name: str, given: list[ast.expr], named: dict[str, ast.expr]) -> Effect:
        """Along axes: they are others where the channels are last."""
        place = words.ALONG[name]
        axis = named.get("dim", named.get("dims", given[place] if len(given) > place else None))
        first = given[:1] or [named[each] for each in ("tensors", "input") if each in named]
        if axis is None and name in words.REDUCING - {"argmax", "argmin"}:
            return Effect(free=first)
        if axis is None:
            return Effect([*first, node] if name in words.ROWS else [])
        if name in ("var", "std") and len(given) > place + 1:
            return Effect()
        several = given[place:] if name == "flip" and len(given) > place + 1 else [axis]
        axes: list[int] = []
        for each in several:
            said = order.axes_of(each)
            if said is None:
                return Effect()
            axes += said
        found = self._edited(first, several)
        if name not in words.REDUCING:
            return dataclasses.replace(found, joined=[*found.joined, node])
        kept = named.get("keepdim", given[place + 1] if len(given) > place + 1 else None)
        if kept is not None and not isinstance(kept, ast.Constant):
            return Effect()
        if kept is not None and kept.value:
            return dataclasses.replace(found, joined=[*found.joined, node])
        return found if order.same_order({*range(AXES)} - {*axes}) else Effect()

    def _edited(self, joined: Sequence[ast.AST], axes: Iterable[ast.expr]) -> Effect:
        """With other numbers of axes."""
        edits: dict[ast.AST, Sequence[order.Part]] = {}
        for node in axes:
            said = order.axes_of(node)
            if said is None:
                return Effect()
            edits[node] = (order.written(node, [order.LAST[each] for each in said]),)
        return Effect(joined, edits=edits)

    def _pad(self, node: ast.Call, given: list[ast.expr], named: dict[str, ast.expr]) -> Effect:
        """The last axes first: before them come the channels, which stay as they are."""
        sizes = given[1] if len(given) > 1 else named.get("pad")
        if not isinstance(sizes, ast.Tuple | ast.List) or len(sizes.elts) not in (2, 4):
            return Effect()
        opening, closing = "()" if isinstance(sizes, ast.Tuple) else "[]"
        parts = [part for each in sizes.elts for part in (", ", each)]
        return Effect([given[0], node], edits={sizes: (f"{opening}0, 0", *parts, closing)})

    def _shape(self, node: ast.AST, owner: ast.AST) -> Effect:
        """`x.shape[1]`, `x.shape[2:]`, `B, C, H, W = x.shape`; any other shape is that of torch."""
        parent = self.source.parents[node]
        if isinstance(parent, ast.Subscript) and parent.value is node:
            place = parent.slice
            if isinstance(place, ast.Slice):
                text = order.slice_of(place)
                return Effect([owner], edits={place: (text,)}) if text is not None else Effect()
            return self._edited([owner], [place])
        if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
            target = parent.targets[0]
            if isinstance(target, ast.Tuple) and (names := order.four(target)):
                parts: list[order.Part] = []
                for axis in order.ORDER:
                    parts += [names[axis], ", "]
                return Effect([owner], edits={target: parts[:-1]})
        free = isinstance(parent, ast.Call) and self.scope.value(parent.func) is len
        return Effect(free=[owner]) if free else Effect()

    def _subscript(self, node: ast.Subscript) -> Effect:
        """`x[:, :c]`: the same parts, in the other order."""
        if not self.images(node.value):
            return Effect()
        given = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        parts: list[ast.expr | None] = []
        for each in given:
            if isinstance(each, ast.Constant) and each.value is ...:
                parts += [None] * (AXES - len(given) + 1)
            elif isinstance(each, ast.Slice) or _is_number(each, self):
                parts.append(None if isinstance(each, ast.Slice) and _is_all(each) else each)
            else:
                return Effect()
        parts += [None] * (AXES - len(parts))
        kept = {axis for axis, each in enumerate(parts) if each is None or isinstance(each, ast.Slice)}
        if len(parts) != AXES or not order.same_order(kept):
            return Effect()
        joined: list[ast.AST] = [node.value, node] if len(kept) == AXES else [node.value]
        return Effect(joined, edits={node.slice: order.ordered([parts[axis] for axis in order.ORDER])})

    def _is_tensor(self, node: ast.AST) -> bool:
        site = self.flow.sites.get(self.source.key(node))
        return bool(site and site.is_tensor)

    def _ranks(self, node: ast.AST) -> set[int]:
        site = self.flow.sites.get(self.source.key(node))
        return site.axes if site else set()


def kind_of(module: Any) -> str:
    """The name of the layer of torch whose `forward` a module has; nothing if it has one of its own."""
    if not isinstance(module, nn.Module):
        return str(module.__qualname__).partition(".")[0]
    owner = next(each for each in type(module).__mro__ if "forward" in vars(each))
    layer = next((each for each in type(module).__mro__ if is_layer(each)), nn.Module)
    return layer.__name__ if is_torchs(owner) else ""


def _is_forward(value: Any) -> bool:
    """Whether a function is the `forward` of a layer, as `super().forward` is."""
    value = value.__func__ if isinstance(value, MethodType) else value
    return isinstance(value, FunctionType) and value.__name__ == "forward" and is_torchs(value)


def _takes_function(function: FunctionType) -> bool:
    """Whether a function of torch calls one that it is given, as `checkpoint` does."""
    return next(iter(inspect.signature(function).parameters), "") == "function"


def _is(node: ast.AST, kinds: Any) -> bool:
    return isinstance(node, kinds)


def _is_all(node: ast.Slice) -> bool:
    return node.lower is None and node.upper is None and node.step is None


def _is_number(node: ast.expr, axes: Axes) -> bool:
    said = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(said, ast.Constant):
        return type(said.value) is int
    site = axes.flow.sites.get(axes.source.key(node))
    return bool(site and site.kinds == {int})
