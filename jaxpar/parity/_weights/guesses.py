"""Guess a mapping for the tensors and leaves that remain unpaired."""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from ..._typing import Shape
from .fusion import PairingView
from .mapping import Concatenated, Entries, Mapping, Plain, Split, Stacked, Target, ignored
from .pairing import Pairing, pair
from .source import WeightSource
from .suggest import (
    Calls,
    LayerGroup,
    Signature,
    Turn,
    entries,
    flax_layers,
    groups,
    role,
    torch_layers,
    turns,
)
from .tree import Outline, inside, last, owner, prefixes
from .unstacked import Key, alike, expanded, shortened

Paths = tuple[str, ...]

TOGETHER = (("query", "key", "value"), ("key", "value"), ("gate", "up"))
"""Roles of layers that one layer computes, in the usual order of its outputs."""
FUSED = re.compile(r"qkv|kv|query_key_value|c_attn|in_proj|gate_up|gate_and_up", re.IGNORECASE)


class Guesses:
    """Guesses for two models, in addition to a fixed mapping; `groups` are unpaired layers."""

    def __init__(
        self,
        tree: Outline,
        source: WeightSource,
        fixed: Entries | None = None,
        ignore_torch: Iterable[str] = (),
        ignore_flax: Iterable[str] = (),
        calls: Calls | None = None,
        interleaved: int = 1,
    ):
        self.fixed, self._fused = dict(fixed or {}), dict[Key, Target]()
        no_torch, unknown_t = ignored(source.tensors, ignore_torch, "ignore_torch")
        no_flax, unknown_f = ignored(tree.leaves, ignore_flax, "ignore_flax")
        torch_source = source.without(no_torch)
        self._view = PairingView(tree, torch_source, self.fixed)
        self._begin(no_flax)
        for guess in (stacks, partial(fused, calls=calls, groups=interleaved)):
            if entries := guess(self._pairing, *self._leftovers()):
                self._fused |= shortened(entries, [*self._pairing.names.bare.values()])
                self._view = PairingView(tree, torch_source, {**self._fused, **self.fixed})
                self._begin(no_flax)
        self._faults = (*unknown_t, *unknown_f, *self._view.faults)
        self.groups = self._apart(calls)

    def _begin(self, no_flax: Iterable[str]) -> None:
        self._no_flax, self._misnamed = self._view.paired_leaves(no_flax), frozenset[str]()
        self._pairing = self._paired({})

    def _apart(self, calls: Calls | None) -> list[LayerGroup]:
        """Return the groups, with layers that have one name and other shapes wherever they have a partner.

        Layers of two Sequentials are numbered apart if only one has a layer without weights among them.
        """
        self._misnamed = frozenset(self._pairing.misfits)
        while True:
            self._pairing = self._paired({})
            layer_groups = groups(self._pairing, *self._leftovers(), calls)
            partnered = self._misnamed & {path for group in layer_groups for path in group.torch}
            if partnered == self._misnamed:
                return layer_groups
            self._misnamed = partnered

    def _leftovers(self) -> tuple[list[str], list[str]]:
        return self._pairing.left_in_torch(), self._pairing.left_in_flax()

    def heads(self) -> list[int]:
        """Return the values of `groups` to try: 1, and the numbers of heads of fused layers."""
        split = {
            path for target in self._fused.values() if isinstance(target, Split) for path in target.targets
        }
        kernels = [
            leaf.shape
            for path, leaf in self._view.tree.leaves.items()
            if len(leaf.shape) == 3 and any(alike(owner(path), str(pattern)) for pattern in split)
        ]
        return list(dict.fromkeys([1, *(shape[1] for shape in kernels)]))

    def turns(self, chosen: Iterable[LayerGroup] | None = None) -> list[Turn]:
        return turns(self._paired(entries(self.groups if chosen is None else chosen, self._pairing)[0]))

    def mapping(
        self,
        chosen: Iterable[LayerGroup] | None = None,
        notes: tuple[str, ...] = (),
        choices: Sequence[int] | None = None,
    ) -> Mapping:
        guessed, reasons = entries(self.groups if chosen is None else chosen, self._pairing)
        turned: dict[str, Target] = {}
        view = self._view
        leftover_turns = turns(self._paired(guessed))
        for turn, choice in zip(leftover_turns, choices or [0] * len(leftover_turns), strict=True):
            short = shortened(turn.entries(choice), view.source.tensors)
            turned |= short
            reasons |= dict.fromkeys(short, turn.reason(choice))
        # Pair again with the guesses: the mapping reports the leftovers and misfits of this final pairing.
        plain = dict(expanded(turned, list(view.source.tensors), ()))
        final = self._paired({**guessed, **plain})  # type: ignore[dict-item]
        unmatched_lines = [f"torch {name} {view.source.shapes[name]}" for name in final.left_in_torch()]
        unmatched_lines += [f"flax  {leaf} {view.tree.leaves[leaf].shape}" for leaf in final.left_in_flax()]
        unmatched = (*self._faults, *final.faults, *unmatched_lines)
        short = shortened(guessed, [*view.source.tensors, *self._pairing.names.bare.values()])
        for key, target in short.items():
            if key not in guessed:
                first = next(reasons[k] for k, path in guessed.items() if alike(path, str(target)))
                reasons[key] = re.sub(r"number \d+ of (\d+)", r"all \1 in order", first)
        entries_of_all = {**self.fixed, **self._fused, **short, **turned}
        why: dict[Any, str] = {**{key: reason(target) for key, target in self._fused.items()}, **reasons}
        why = {key: text for key, text in why.items() if key in entries_of_all}
        return Mapping(entries_of_all, why, unmatched, notes)

    def _paired(self, guessed: Plain) -> Pairing:
        view = self._view
        return pair(view.tree, view.source, {**guessed, **view.entries}, self._no_flax, self._misnamed)

    def bare(self, path: str) -> str:
        return self._pairing.names.bare.get(path, path)


def fused(
    pairing: Pairing, torch: Sequence[str], flax: Sequence[str], calls: Calls | None = None, groups: int = 1
) -> dict[Key, Target]:
    """Return entries for unpaired layers with the roles of a fused layer that the other side has.

    `groups` is the number of heads if torch stores q, k and v of each head contiguously.
    """
    sides = torch_layers(pairing, torch), flax_layers(pairing, flax)
    orders = calls or ({}, {})
    entries: dict[Key, Target] = {}
    for fused_layer, parts in _pairs(sides[0], sides[1], orders):
        entries[fused_layer] = Split(0, parts, groups=groups)
    for fused_layer, parts in _pairs(sides[1], sides[0], orders[::-1]):
        entries[parts] = Concatenated(0, fused_layer)
    return entries


def _pairs(
    wholes: abc.Mapping[str, Signature], parts: abc.Mapping[str, Signature], orders: Calls
) -> Iterator[tuple[str, Paths]]:
    """Yield fused layers of one side with the other side's layers, in order, where both have as many."""
    owners = list(_siblings(parts))
    used: set[str] = set()
    # Owners of the same roles first, which need no order of calls if each has a layer of its shape.
    for signature in dict.fromkeys(next(iter(joined)) for joined in owners):
        layers = [path for path in _of_shape(wholes, parts, signature) if path not in used]
        siblings = [joined[signature] for joined in owners if next(iter(joined)) == signature]
        if len(layers) == len(siblings):
            pairs = list(zip(_by_call(layers, orders[0]), _by_call(siblings, orders[1]), strict=True))
            used |= {path for layer, paths in pairs for path in (layer, *paths)}
            yield from pairs
    # Then owners that differ in what is fused, such as qkv in blocks and kv in a pooling: in order of calls.
    remaining = [joined for joined in owners if used.isdisjoint(next(iter(joined.values())))]
    shapes = dict.fromkeys(signature for joined in remaining for signature in joined)
    layers = [path for shape in shapes for path in _of_shape(wholes, parts, shape) if path not in used]
    if len(layers) == len(remaining):
        remaining.sort(key=lambda joined: orders[1].get(next(iter(joined.values()))[0], len(orders[1])))
        fits = (
            (path, joined.get(wholes[path]))
            for path, joined in zip(_by_call(layers, orders[0]), remaining, strict=True)
        )
        matched = [(path, paths) for path, paths in fits if paths and _is_named_for(path, paths)]
        if len(matched) == len(remaining):
            yield from matched


def _is_named_for(layer: str, parts: Paths) -> bool:
    """Whether a fused layer's name allows for the parts: `kv` has two, `qkv` and others three."""
    return (re.search(r"(^|_)(kv|key_value)", last(layer), re.IGNORECASE) is None) is (len(parts) == 3)


def _of_shape(
    wholes: abc.Mapping[str, Signature], parts: abc.Mapping[str, Signature], signature: Signature
) -> list[str]:
    """Return one side's layers that may be fused ones of this shape."""
    layers = [path for path, other in wholes.items() if other == signature]
    # Layers of this shape on both sides may be partners themselves; a name tells fused ones.
    return [path for path in layers if FUSED.search(last(path)) or signature not in parts.values()]


def _by_call(layers: list[Any], order: abc.Mapping[str, int]) -> list[Any]:
    """Return layers, or groups of them by their first one, in the order of calls."""
    return sorted(layers, key=lambda x: order.get(x if isinstance(x, str) else x[0], len(order)))


def _siblings(layers: abc.Mapping[str, Signature]) -> Iterator[dict[Signature, Paths]]:
    """Yield for each owner its layers with the roles of a fused layer, by the shapes that it would have."""
    owners: dict[str, dict[str, str]] = {}
    for path in layers:
        owners.setdefault(owner(path), {}).setdefault(role(path), path)
    for roles in owners.values():
        joined: dict[Signature, Paths] = {}
        for names in TOGETHER:
            if all(name in roles for name in names):
                paths = tuple(roles[name] for name in names)
                if signature := _joined([dict(layers[path]) for path in paths]):
                    joined.setdefault(signature, paths)
        if joined:
            yield joined


def _joined(shapes: Sequence[abc.Mapping[str, Shape]]) -> Signature:
    """Return the shapes of layers concatenated along torch's first axis; nothing if they do not fit."""
    first = shapes[0]
    for other in shapes[1:]:
        if other.keys() != first.keys() or any(other[name][1:] != first[name][1:] for name in first):
            return frozenset()
    return frozenset((name, (sum(s[name][0] for s in shapes), *shape[1:])) for name, shape in first.items())


def stacks(pairing: Pairing, torch: Iterable[str], flax: Iterable[str]) -> dict[Key, Target]:
    """Return entries for torch's lists of equal layers with the sizes of Flax arrays of their length."""
    leaves = {leaf: pairing.tree.leaves[leaf].shape for leaf in flax}
    groups: dict[tuple[int, int], tuple[list[str], list[str]]] = {}
    for path, count, size in _lists(pairing, torch):
        groups.setdefault((count, size), ([], _containers(leaves, count, size)))[0].append(path)
    return {
        path: Stacked(container)
        for paths, containers in groups.values()
        if len(paths) == len(containers)
        for path, container in zip(paths, containers, strict=True)
    }


def _lists(pairing: Pairing, torch: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield torch's outermost lists of two or more equal layers: path, length and numbers in each."""
    lists: dict[str, dict[int, dict[str, Shape]]] = {}
    for raw in torch:
        name = pairing.names.bare[raw]
        if parts := re.match(r"(.*?)\.?\b(\d+)\.(.*)", name):
            path, index, name_in_layer = parts.groups()
            lists.setdefault(path, {}).setdefault(int(index), {})[name_in_layer] = pairing.source.shapes[raw]
    for path, items in lists.items():
        equal = all(item == items.get(0) for item in items.values())
        if path and equal and len(items) > 1 and sorted(items) == list(range(len(items))):
            yield path, len(items), sum(prod(shape) for shape in items[0].values())


def _containers(leaves: abc.Mapping[str, Shape], count: int, size: int) -> list[str]:
    """Return the innermost paths of which all leaves are `count` long, with `size` numbers in each entry."""
    paths = dict.fromkeys(path for leaf in leaves for path in prefixes(leaf)[1:-1])
    containers: dict[frozenset[str], str] = {}
    for path in sorted(paths, key=lambda path: path.count(".")):
        inner = {leaf: shape for leaf, shape in leaves.items() if inside(leaf, path) is not None}
        long = all(shape[:1] == (count,) for shape in inner.values())
        if long and sum(prod(shape[1:]) for shape in inner.values()) == size:
            containers[frozenset(inner)] = path
    return list(containers.values())


def reason(target: Target) -> str:
    if isinstance(target, Stacked):
        return "guessed: a list of equal layers, and arrays of its length"
    return "guessed: the shapes fit in this order"
