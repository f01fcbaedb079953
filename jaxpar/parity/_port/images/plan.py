"""Plan: which images have their channels last, and what is written differently for it."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from ..reading.scope import Scope
from ..reading.source import Key, source_of
from . import words
from .axes import Axes, Effect, Unsafe, kind_of
from .flow import AXES, Flow
from .order import Part, parts_of

TO_TORCH, FROM_TORCH, LIFTED = (-1, 1), (1, -1), (0, -1)
"""Which axis goes where: of images that are turned for a line, of what it made of them, of [C, 1, 1]."""


@dataclasses.dataclass
class Plan:
    """What is written differently.

    Attributes:
      replaced: the text of expressions, in parts; those that are nodes are translated.
      moved: expressions of which an axis moves.
      notes: the lines that have torch's axes.
    """

    replaced: dict[Key, Sequence[Part]] = dataclasses.field(default_factory=dict)
    moved: dict[Key, tuple[int, int]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def move(self, key: Key, axes: tuple[int, int]) -> None:
        """There and back is nowhere."""
        if {self.moved.get(key), axes} == {TO_TORCH, FROM_TORCH}:
            del self.moved[key]
        else:
            self.moved[key] = axes


class Groups:
    """Tensors that have one order of axes."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._images: set[int] = set()

    def root(self, number: int) -> int:
        parents = self._parents
        parents.setdefault(number, number)
        while parents[number] != number:  # no recursion: a loop of the user's may have joined thousands
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, numbers: Iterable[int], image: bool = False) -> None:
        found = list(numbers)
        for one, other in itertools.pairwise(found):
            self._parents[self.root(one)] = self.root(other)
        self._images.update(found if image else ())

    def last(self) -> frozenset[int]:
        """The tensors that have their channels last: images, and all of their groups."""
        images = {self.root(each) for each in self._images}
        return frozenset(each for each in [*self._parents] if self.root(each) in images)


def plan(flow: Flow, nets: Sequence[nn.Module]) -> Plan:
    """What changes where images that come and go, and those of layers for images, have their channels last.

    Raises:
      Unsafe: a line has images of both kinds, or one that cannot be turned.
    """
    groups = Groups()
    for numbers in flow.at.values():
        groups.join(numbers)
    found = [(axes, node, effect) for axes, node in _expressions(flow) if (effect := axes.effect(node))]
    for axes, _, effect in found:
        groups.join(_held(axes, effect.joined), effect.image)
    forbidden = _layers(flow, groups, {id(each) for axes, node, _ in found for each in _called(axes, node)})
    forbidden += _ends(flow, groups, {id(each) for each in nets})
    last = groups.last()
    for said, numbers in forbidden:
        if not last.isdisjoint(numbers):
            raise Unsafe(said)
    made = Plan()
    for axes, node, effect in found:
        _write(made, last, axes, node, effect)
    return made


def _expressions(flow: Flow) -> Iterator[tuple[Axes, ast.AST]]:
    """Every expression and statement of the user's functions that ran."""
    done: set[ast.AST] = set()
    for code, function in flow.functions.items():
        source = source_of(code.co_filename)
        outer = source.function(code)
        axes = Axes(flow, source, Scope(function.__globals__).inside(outer)) if outer else None
        for node in ast.walk(outer) if outer else ():
            if axes and node not in done:
                done.add(node)
                yield axes, node


def _held(axes: Axes, nodes: Iterable[ast.AST]) -> set[int]:
    return {number for node in nodes for each in parts_of(node) for number in axes.held(each)}


def _called(axes: Axes, node: ast.AST) -> Iterable[object]:
    site = axes.flow.site(axes.source, node.func) if isinstance(node, ast.Call) else None
    return site.objects.values() if site else ()


def _layers(flow: Flow, groups: Groups, by_a_line: set[int]) -> list[tuple[str, set[int]]]:
    """What layers join. Returned are images of those that need torch's axes, and that no line calls."""
    forbidden = []
    for module, given, made in flow.calls:
        kind = kind_of(module)
        if kind in words.IMAGE_LAYERS | words.ELEMENTWISE_LAYERS:
            groups.join([*given, *made], kind in words.IMAGE_LAYERS)
        elif kind not in words.CONTAINERS | {""} and id(module) not in by_a_line:
            forbidden.append((f"{kind} in a container is given an image", {*given, *made}))
    return forbidden


def _ends(flow: Flow, groups: Groups, nets: set[int]) -> list[tuple[str, set[int]]]:
    """Images that come and go. Returned are arrays that are not of floats, which have torch's axes."""
    ends = {each for module, given, made in flow.calls if id(module) in nets for each in (*given, *made)}
    images = set(filter(flow.is_floating_point, ends))
    for each in images:
        groups.join([each], image=True)
    return [("an array with four axes that comes or goes and is not of floats", ends - images)]


def _write(made: Plan, last: frozenset[int], axes: Axes, node: ast.AST, effect: Effect) -> None:
    """The text of one expression."""
    joined = [part for each in effect.joined for part in parts_of(each)]
    if not last.isdisjoint(_held(axes, effect.refused)):
        raise Unsafe(f"{axes.source.place(node)}: {_said(axes, node)}: it changes a part of an image")
    if not last.isdisjoint(_held(axes, joined)):
        if effect.edits or effect.lifted:
            for each in joined:
                _require_images(axes, each)
        made.replaced.update({axes.source.key(each): parts for each, parts in effect.edits.items()})
        for each in effect.lifted:
            made.move(axes.source.key(each), LIFTED)
    for each in axes.operands(node):
        if each not in joined and each not in effect.free and not last.isdisjoint(axes.held(each)):
            _turn(made, axes, each, TO_TORCH)
            made.notes.append(f"{axes.source.place(node)}: {_said(axes, node)}: in torch's axes")
    if node not in joined and not last.isdisjoint(axes.held(node)):
        _turn(made, axes, node, FROM_TORCH)


def _turn(made: Plan, axes: Axes, node: ast.AST, move: tuple[int, int]) -> None:
    if not axes.images(node):
        raise Unsafe(f"{axes.source.place(node)}: {_said(axes, node)}: a list of images")
    _require_images(axes, node)
    made.move(axes.source.key(node), move)


def _require_images(axes: Axes, node: ast.AST) -> None:
    """Nothing else may come to a place that is written for images."""
    site = axes.flow.site(axes.source, node)
    if site and (site.axes - {AXES} or not site.is_tensor) and axes.images(node):
        raise Unsafe(f"{axes.source.place(node)}: {_said(axes, node)}: not always an image")


def _said(axes: Axes, node: ast.AST) -> str:
    return " ".join(axes.source.segment(node).split())
