"""Unstacked: a Flax model that scans over its layers, as the list of layers that torch has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..._typing import Shape
from .cuts import Fusion, Stack
from .paths import inside, join
from .tree import Leaf, Outline


def unstacked(tree: Outline, path: str, axis: int) -> tuple[Outline, list[Fusion], dict[str, str]]:
    """The tree with a list of layers in place of the layer that holds all of them.

    Returns:
      the tree; what was done with the leaves; the real paths of the new ones.

    Raises:
      ValueError: no such layer, or its arrays are not of one length along the axis.
    """
    count = _count(tree, path, axis)

    def places(old: str) -> list[str]:
        rest = inside(old, path)
        return [old] if rest is None else [join(path, str(i), rest) for i in range(count)]

    def listed(old: Iterable[str]) -> Iterator[tuple[str, str]]:
        """New and old paths, layer by layer."""
        paths = list(old)
        inner = [each for each in paths if inside(each, path) is not None]
        for each in paths:
            if each not in inner:
                yield each, each
            elif each == inner[0]:
                yield from ((places(other)[i], other) for i in range(count) for other in inner)

    def without(x: Leaf) -> Leaf:
        shape = list(x.shape)
        del shape[axis]
        return Leaf(tuple(shape), x.dtype, x.parameter)

    new = Outline()
    new.wrapped = tree.wrapped
    new.layers = {made: tree.layers[old] for made, old in listed(tree.layers)}
    new.leaves = {
        made: tree.leaves[old] if made == old else without(tree.leaves[old])
        for made, old in listed(tree.leaves)
    }
    new.aliases = {
        made: real
        for alias, first in tree.aliases.items()
        for made, real in zip(places(alias), places(first), strict=len(places(alias)) == len(places(first)))
    }
    name = tree.names.get(path, path)
    new.names = {made: made for made, _ in listed(tree.names)}
    for made, old in listed(tree.names):
        if made == old:
            new.names[made] = tree.names[old]
        else:
            number = (inside(made, path) or "").split(".")[0]
            new.names[made] = join(name, number, inside(tree.names[old], name) or "")
    new.names[path] = name
    fusions = [Fusion((leaf,), tuple(places(leaf)), Stack(axis), True) for leaf in _below(tree, path)]
    return new, fusions, {made: old for made, old in listed(tree.names) if made != old}


def _below(tree: Outline, path: str) -> dict[str, Shape]:
    return {leaf: x.shape for leaf, x in tree.leaves.items() if inside(leaf, path)}


def _count(tree: Outline, path: str, axis: int) -> int:
    """How many layers are stacked."""
    shapes = _below(tree, path)
    if not shapes:
        raise ValueError(f"the Flax model has nothing below {path!r}")
    for leaf, shape in shapes.items():
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"{leaf} {shape} has no axis {axis}")
    if len({shape[axis] for shape in shapes.values()}) > 1:
        said = ", ".join(f"{leaf} {shape}" for leaf, shape in shapes.items())
        raise ValueError(f"axis {axis} is not of one length in {said}")
    return next(iter(shapes.values()))[axis]
