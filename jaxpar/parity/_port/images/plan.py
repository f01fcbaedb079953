"""Plan: which images have their channels last, and which expressions change for that."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from ..reading.scope import Scope
from ..reading.source import Key, source_of
from . import tables
from .axes import Axes, Effect, Unsafe, kind_of
from .flow import AXES, Flow
from .order import Part, parts_of

TO_TORCH, FROM_TORCH, LIFTED = (-1, 1), (1, -1), (0, -1)
"""(source, destination) of a moved axis: to torch's order, from torch's order, and from [C, 1, 1]."""


@dataclasses.dataclass
class LayoutPlan:
    """The expressions that change where channels come last.

    `replaced` is their text in parts, of which nodes are translated; `notes` are the lines that keep torch's
    axes.
    """

    replaced: dict[Key, Sequence[Part]] = dataclasses.field(default_factory=dict)
    moved: dict[Key, tuple[int, int]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def move(self, key: Key, axes: tuple[int, int]) -> None:
        """A move and its inverse cancel."""
        if {self.moved.get(key), axes} == {TO_TORCH, FROM_TORCH}:
            del self.moved[key]
        else:
            self.moved[key] = axes


class Groups:
    """A union-find of tensors that share one order of axes."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._images: set[int] = set()

    def root(self, number: int) -> int:
        parents = self._parents
        parents.setdefault(number, number)
        while parents[number] != number:  # not recursive: a loop in the user's code may have joined thousands
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, numbers: Iterable[int], image: bool = False) -> None:
        listed = list(numbers)
        for one, other in itertools.pairwise(listed):
            self._parents[self.root(one)] = self.root(other)
        self._images.update(listed if image else ())

    def last(self) -> frozenset[int]:
        images = {self.root(number) for number in self._images}
        return frozenset(number for number in [*self._parents] if self.root(number) in images)


def plan(flow: Flow, nets: Sequence[nn.Module]) -> LayoutPlan:
    """Give inputs, outputs and the images of image layers their channels last."""
    groups = Groups()
    for numbers in flow.at.values():
        # An expression has one text for all its evaluations, so their images share one order.
        groups.join(numbers)
    effects = [(axes, node, effect) for axes, node in _expressions(flow) if (effect := axes.effect(node))]
    for axes, _, effect in effects:
        groups.join(_images_within(axes, effect.joined), effect.image)
    # A group becomes one of images by any of its members, so all joins precede the first decision.
    forbidden = _layers(
        flow, groups, {id(callee) for axes, node, _ in effects for callee in _callees(axes, node)}
    )
    forbidden += _inputs_and_outputs(flow, groups, {id(net) for net in nets})
    last = groups.last()
    for reason, numbers in forbidden:
        if not last.isdisjoint(numbers):
            raise Unsafe(reason)
    rewriting = LayoutPlan()
    for axes, node, effect in effects:
        _write(rewriting, last, axes, node, effect)
    return rewriting


def _expressions(flow: Flow) -> Iterator[tuple[Axes, ast.AST]]:
    done: set[ast.AST] = set()
    for code, function in flow.functions.items():
        source = source_of(code.co_filename)
        outer = source.function(code)
        axes = Axes(flow, source, Scope(function.__globals__).inside(outer)) if outer else None
        for node in ast.walk(outer) if outer else ():
            if axes and node not in done:
                done.add(node)
                yield axes, node


def _images_within(axes: Axes, nodes: Iterable[ast.AST]) -> set[int]:
    return {number for node in nodes for part in parts_of(node) for number in axes.images_within(part)}


def _callees(axes: Axes, node: ast.AST) -> Iterable[object]:
    site = axes.flow.site(axes.source, node.func) if isinstance(node, ast.Call) else None
    return site.objects.values() if site else ()


def _layers(flow: Flow, groups: Groups, by_a_line: set[int]) -> list[tuple[str, set[int]]]:
    """Join the images of layers; return the images of containers' layers that need torch's axes."""
    forbidden = []
    for module, arguments, results in flow.calls:
        kind = kind_of(module)
        if kind in tables.IMAGE_LAYERS | tables.ELEMENTWISE_LAYERS:
            groups.join([*arguments, *results], kind in tables.IMAGE_LAYERS)
        # The images of a layer that a line calls are transposed in that line; a container has no such line.
        elif kind not in tables.CONTAINERS | {""} and id(module) not in by_a_line:
            forbidden.append((f"{kind} in a container is given an image", {*arguments, *results}))
    return forbidden


def _inputs_and_outputs(flow: Flow, groups: Groups, nets: set[int]) -> list[tuple[str, set[int]]]:
    """Join inputs and outputs; return those that do not hold floats, which keep torch's axes."""
    calls = [call for call in flow.calls if id(call.module) in nets]
    ends = {number for call in calls for number in (*call.arguments, *call.results)}
    # The proof transposes arrays by the same criterion, `layout.is_image`.
    images = set(filter(flow.is_floating_point, ends))
    for image in images:
        groups.join([image], image=True)
    return [("an array with four axes that comes or goes and is not of floats", ends - images)]


def _write(rewriting: LayoutPlan, last: frozenset[int], axes: Axes, node: ast.AST, effect: Effect) -> None:
    joined = [part for operand in effect.joined for part in parts_of(operand)]
    if not last.isdisjoint(_images_within(axes, effect.refused)):
        raise Unsafe(f"{axes.source.place(node)}: {_source_text(axes, node)}: it changes a part of an image")
    if not last.isdisjoint(_images_within(axes, joined)):
        # An edited number is wrong for a tensor of a different rank that the same line evaluates.
        if effect.edits or effect.lifted:
            for operand in joined:
                _require_images(axes, operand)
        rewriting.replaced.update({axes.source.key(part): text for part, text in effect.edits.items()})
        for operand in effect.lifted:
            rewriting.move(axes.source.key(operand), LIFTED)
    for operand in axes.operands(node):
        if (
            operand not in joined
            and operand not in effect.free
            and not last.isdisjoint(axes.images_within(operand))
        ):
            _transpose(rewriting, axes, operand, TO_TORCH)
            rewriting.notes.append(f"{axes.source.place(node)}: {_source_text(axes, node)}: in torch's axes")
    if node not in joined and not last.isdisjoint(axes.images_within(node)):
        _transpose(rewriting, axes, node, FROM_TORCH)


def _transpose(rewriting: LayoutPlan, axes: Axes, node: ast.AST, move: tuple[int, int]) -> None:
    if not axes.images(node):
        raise Unsafe(f"{axes.source.place(node)}: {_source_text(axes, node)}: a list of images")
    _require_images(axes, node)
    rewriting.move(axes.source.key(node), move)


def _require_images(axes: Axes, node: ast.AST) -> None:
    site = axes.flow.site(axes.source, node)
    if site and (site.axes - {AXES} or not site.is_tensor) and axes.images(node):
        raise Unsafe(f"{axes.source.place(node)}: {_source_text(axes, node)}: not always an image")


def _source_text(axes: Axes, node: ast.AST) -> str:
    return " ".join(axes.source.segment(node).split())
