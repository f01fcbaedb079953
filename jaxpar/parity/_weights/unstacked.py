"""Present a Flax model that scans over stacked layers as a list of layers; patterns of their names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..._typing import Shape
from .mapping import Concatenated, Entries, Split, Target
from .reversible import Inverted, Move, UnstackAxis
from .tree import LeafSpec, Outline, inside, join


def unstacked(tree: Outline, path: str, axis: int) -> tuple[Outline, list[Move], dict[str, str]]:
    """The new tree, the moves from its layers' leaves to the stacked ones, stacked paths by new paths."""
    count = _count(tree, path, axis)

    def new_paths(old: str) -> list[str]:
        suffix = inside(old, path)
        return [old] if suffix is None else [join(path, str(i), suffix) for i in range(count)]

    def listed(old: Iterable[str]) -> Iterator[tuple[str, str]]:
        paths = list(old)
        inner = [old_path for old_path in paths if inside(old_path, path) is not None]
        for old_path in paths:
            if old_path not in inner:
                yield old_path, old_path
            elif old_path == inner[0]:
                yield from ((new_paths(other)[i], other) for i in range(count) for other in inner)

    def without(x: LeafSpec) -> LeafSpec:
        shape = list(x.shape)
        del shape[axis]
        return LeafSpec(tuple(shape), x.dtype, x.parameter)

    new = Outline()
    new.wrapped = tree.wrapped
    new.layers = {new_path: tree.layers[old] for new_path, old in listed(tree.layers)}
    new.leaves = {
        new_path: tree.leaves[old] if new_path == old else without(tree.leaves[old])
        for new_path, old in listed(tree.leaves)
    }
    new.aliases = {
        new_path: real
        for alias, first in tree.aliases.items()
        for new_path, real in zip(
            new_paths(alias), new_paths(first), strict=len(new_paths(alias)) == len(new_paths(first))
        )
    }
    name = tree.names.get(path, path)
    new.names = {new_path: new_path for new_path, _ in listed(tree.names)}
    for new_path, old in listed(tree.names):
        if new_path == old:
            new.names[new_path] = tree.names[old]
        else:
            number = (inside(new_path, path) or "").split(".")[0]
            new.names[new_path] = join(name, number, inside(tree.names[old], name) or "")
    new.names[path] = name
    stack = Inverted(UnstackAxis(axis))
    moves = [Move(tuple(new_paths(leaf)), (leaf,), stack) for leaf in _below(tree, path)]
    return new, moves, {new_path: old for new_path, old in listed(tree.names) if new_path != old}


def _below(tree: Outline, path: str) -> dict[str, Shape]:
    return {leaf: x.shape for leaf, x in tree.leaves.items() if inside(leaf, path)}


def _count(tree: Outline, path: str, axis: int) -> int:
    shapes = _below(tree, path)
    if not shapes:
        raise ValueError(f"the Flax model has nothing below {path!r}")
    for leaf, shape in shapes.items():
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"{leaf} {shape} has no axis {axis}")
    if len({shape[axis] for shape in shapes.values()}) > 1:
        sizes = ", ".join(f"{leaf} {shape}" for leaf, shape in shapes.items())
        raise ValueError(f"axis {axis} is not of one length in {sizes}")
    return next(iter(shapes.values()))[axis]


Key = str | tuple[str, ...]


def expanded(
    mapping: Entries, torch: Iterable[str] | None, flax: Iterable[str]
) -> Iterator[tuple[Key, Target]]:
    """With `torch` None, targets are matched with Flax's paths."""
    # Entries without a pattern come first and take precedence.
    written = {key for key in mapping if "*" not in str(key)}
    yield from ((key, target) for key, target in mapping.items() if key in written)
    for key, target in mapping.items():
        if key in written:
            continue
        pattern = (key if isinstance(key, str) else key[0]) if torch is not None else _first(target)
        matches = list(dict.fromkeys(_matches(pattern, flax if torch is None else torch)))
        if not matches:
            yield key, target  # unchanged, for the error message
        for fillings in matches:
            filled = _filled(key, fillings)
            if filled not in written:
                yield filled, _filled(target, fillings)


def _first(target: Target) -> str:
    inner: Any = target
    while not isinstance(inner, str):
        if isinstance(inner, Split):
            inner = inner.targets[0]
        elif isinstance(inner, Concatenated):
            inner = inner.target
        elif isinstance(inner, (tuple, list)):
            inner = inner[0]
        else:
            inner = inner.path
    return inner


def _matches(pattern: str, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    # One key at most: a `*` across dots would match the same name in several ways.
    expression = re.compile("([^.]+)".join(map(re.escape, pattern.split("*"))))
    for name in names:
        match = expression.match(name)
        if match and name[match.end() :][:1] in ("", "."):
            yield match.groups()


def alike(name: str, pattern: str) -> bool:
    """Return whether a name is one of a pattern's."""
    return any(True for _ in _matches(pattern, [name]))


def _filled(value: Any, fillings: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        remaining = iter(fillings)
        return re.sub(r"\*", lambda _: next(remaining, "*"), value)
    if isinstance(value, (tuple, list)):
        return tuple(_filled(child, fillings) for child in value)
    if isinstance(value, Split):
        return dataclasses.replace(value, targets=_filled(value.targets, fillings))
    if isinstance(value, Concatenated):
        return dataclasses.replace(value, target=_filled(value.target, fillings))
    return dataclasses.replace(value, path=_filled(value.path, fillings))


def shortened(entries: Mapping[Any, Target], torch: Iterable[str]) -> dict[Any, Target]:
    """Merge entries that differ only in numbers to patterns, if each matches exactly its entries."""
    names, short, remaining = list(torch), dict[Any, Target](), dict(entries)
    first = {key: key for key in entries}
    most = max((len(re.findall(r"\d+", str(key))) for key in entries), default=0)
    # First over one number, which is mostly a block's: "blocks.*.fc1": "layer_*.Dense_1".
    for position in (*range(most), None):
        groups: dict[tuple[Any, str], dict[Any, Target]] = {}
        for key, target in remaining.items():
            groups.setdefault((_starred(key, position), repr(_starred(target))), {})[key] = target
        for alike in groups.values():
            pattern, target = _merged(list(alike)), _merged(list(alike.values()))
            if len(alike) > 1 and dict(expanded({pattern: target}, names, ())) == alike:
                short[pattern] = target
                first[pattern] = next(iter(alike))
                remaining = {key: x for key, x in remaining.items() if key not in alike}
    order = {key: i for i, key in enumerate(entries)}
    return dict(sorted((short | remaining).items(), key=lambda item: order[first[item[0]]]))


def _starred(value: Any, position: int | None = None) -> Any:
    """Return names with a * for every number, or for the one at a position."""
    if isinstance(value, str):
        parts = re.split(r"(\d+)", value)
        numbers = range(1, len(parts), 2) if position is None else [2 * position + 1]
        return "".join("*" if i in numbers else part for i, part in enumerate(parts))
    if isinstance(value, tuple):
        return tuple(_starred(part, position) for part in value)
    field = _field(value)
    return dataclasses.replace(value, **{field: _starred(getattr(value, field))})


def _merged(values: Sequence[Any]) -> Any:
    """Return the first of values that are alike but for numbers, with a * for each number that varies."""
    first = values[0]
    if isinstance(first, str):
        columns = zip(*(re.split(r"(\d+)", value) for value in values), strict=True)
        return "".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)
    if isinstance(first, tuple):
        return tuple(_merged(parts) for parts in zip(*values, strict=True))
    return dataclasses.replace(first, **{_field(first): _merged([getattr(x, _field(x)) for x in values])})


def _field(target: Any) -> str:
    return {Split: "targets", Concatenated: "target"}.get(type(target), "path")
