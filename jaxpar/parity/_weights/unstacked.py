"""Present a Flax model that scans over stacked layers as a list of layers, as in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..._typing import Shape
from .paths import inside, join
from .reversible import Inverted, Move, UnstackAxis
from .tree import LeafSpec, Outline


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
