"""Guess layers that are one in torch and several in Flax, or the reverse, and lists that Flax has stacked.

torch attn.qkv (24, 8)  and  Flax att.query, att.key, att.value (8, 2, 4)   split
torch attn.q, .k, .v    and  Flax att.qkv (8, 24)                           concatenated
torch blocks.0 ... 5    and  Flax blocks of arrays (6, ...)                 stacked
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ..._typing import Shape
from .mapping import Concatenated, Split, Stacked, Target
from .pairing import Pairing
from .suggest import Calls, Signature, flax_layers, role, torch_layers
from .tree import inside, last, owner, prefixes
from .unstacked import Key

TOGETHER = (("query", "key", "value"), ("key", "value"), ("gate", "up"))
"""Roles of layers that one layer computes, in the usual order of its outputs."""
FUSED = re.compile(r"qkv|kv|query_key_value|c_attn|in_proj|gate_up|gate_and_up", re.IGNORECASE)

Paths = tuple[str, ...]


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
    wholes: Mapping[str, Signature], parts: Mapping[str, Signature], orders: Calls
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
    wholes: Mapping[str, Signature], parts: Mapping[str, Signature], signature: Signature
) -> list[str]:
    """Return one side's layers that may be fused ones of this shape."""
    layers = [path for path, other in wholes.items() if other == signature]
    # Layers of this shape on both sides may be partners themselves; a name tells fused ones.
    return [path for path in layers if FUSED.search(last(path)) or signature not in parts.values()]


def _by_call(layers: list[Any], order: Mapping[str, int]) -> list[Any]:
    """Return layers, or groups of them by their first one, in the order of calls."""
    return sorted(layers, key=lambda x: order.get(x if isinstance(x, str) else x[0], len(order)))


def _siblings(layers: Mapping[str, Signature]) -> Iterator[dict[Signature, Paths]]:
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


def _joined(shapes: Sequence[Mapping[str, Shape]]) -> Signature:
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


def _containers(leaves: Mapping[str, Shape], count: int, size: int) -> list[str]:
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
