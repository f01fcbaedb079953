"""Implied: the names of torch's arrays where only Flax's are known, and a mapping with fusions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..._typing import Shape
from ...errors import MatchError
from .cuts import Cut
from .fusion import piece_names, whole_name
from .mapping import Concatenated, Entries, Plain, Split, Stacked, Target, path_of
from .paths import inside, join
from .patterns import Key, expanded
from .tree import Outline, Tree
from .unstacked import unstacked

Names = dict[str, tuple[Shape, Any]]
"""Shapes and element types by torch name."""


def names(
    here: Tree, mapping: Entries, ignored: set[str], plain: Callable[[Outline, Plain, set[str]], Names]
) -> Names:
    """The names that `plain` finds for entries without fusions, put together as the fusions say.

    Args:
      ignored: Flax paths that are left out, with all below them.
      plain: called with the model as torch has it, entries without fusions, and what is left out there.

    Raises:
      MatchError: pieces that fit nothing.
    """
    tree: Outline = here
    entries: dict[str, Target] = {}
    stacks = {key: place for key, place in mapping.items() if isinstance(place, Stacked)}
    for key, place in _expanded(tree, stacks):
        assert isinstance(place, Stacked)
        try:
            tree, _, paths = unstacked(tree, tree.real_path(place.path), place.axis)
        except ValueError as error:
            raise MatchError(f"to_torch: mapping: {key!r}: {place!r}: {error}.") from None
        ignored |= {new for new, old in paths.items() if any(inside(old, n) is not None for n in ignored)}
        keys = {key: ""} if isinstance(key, str) else {each: str(i) for i, each in enumerate(key)}
        entries |= {each: join(place.path, number) for each, number in keys.items()}
    # Patterns are looked for among the layers as torch has them, so after what is stacked has been unstacked.
    others = _expanded(tree, {key: place for key, place in mapping.items() if key not in stacks})
    fusions = [(key, place) for key, place in others if isinstance(place, (Split, Concatenated))]
    entries |= {
        key: p for key, p in others if isinstance(key, str) and not isinstance(p, (Split, Concatenated))
    }
    for key, place in fusions:
        entries |= _seen_entries(tree, key, place)
    found = plain(tree, entries, ignored)
    for key, place in fusions:
        found = dict(_real(found, key, place))
    return found


def _expanded(tree: Outline, mapping: Entries) -> list[tuple[Key, Target]]:
    return list(expanded(mapping, None, [*tree.names, *tree.leaves]))


def _seen_entries(tree: Outline, key: Key, place: Split | Concatenated) -> dict[str, Target]:
    """Entries for the names that pairing sees."""
    if isinstance(place, Concatenated):
        return {whole_name(key, ""): place.target}
    rest = "" if _is_leaf(tree, place.targets[0]) else "*"
    seen = piece_names(str(key), rest, len(place.targets))
    return {name.removesuffix(".*"): each for name, each in zip(seen, place.targets, strict=True)}


def _is_leaf(tree: Outline, place: Target) -> bool:
    return tree.real_path(path_of(place) or "") in tree.leaves


def _real(found: Names, key: Key, place: Split | Concatenated) -> Iterator[tuple[str, tuple[Shape, Any]]]:
    """The names with those of one fusion put together, or taken apart."""
    for name, (shape, dtype) in found.items():
        if isinstance(place, Concatenated):
            rest = inside(name, whole_name(key, ""))
            if rest is None:
                yield name, (shape, dtype)
                continue
            cut = Cut(place.axis, place.sizes or _equal(shape, place.axis, len(key)), place.groups)
            if fault := cut.fault(shape):
                raise MatchError(
                    f"to_torch: {name} {shape} cannot become {', '.join(key)}: {fault}. Give like=, or "
                    "parity.concatenated(..., sizes=...)."
                )
            empty = np.broadcast_to(np.zeros((), np.bool_), shape)
            for each, piece in zip(key, cut.pieces(empty), strict=True):
                yield join(each, rest), (piece.shape, dtype)
            continue
        rests = [rest for i in range(len(place.targets)) if (rest := _rest(name, str(key), i)) is not None]
        if not rests:
            yield name, (shape, dtype)
        elif name == (pieces := piece_names(str(key), rests[0], len(place.targets)))[0]:
            shapes = [found[other][0] for other in pieces]
            whole = list(shape)
            whole[place.axis] = sum(each[place.axis] for each in shapes)
            yield join(str(key), rests[0]), (tuple(whole), dtype)


def _rest(name: str, key: str, i: int) -> str | None:
    """What follows the key in the name of its piece i; None if it is no such piece."""
    if name == piece_names(key, "", i + 1)[i]:
        return ""
    return inside(name, f"{key}[{i}]")


def _equal(shape: Shape, axis: int, count: int) -> tuple[int, ...]:
    return (shape[axis] // count if -len(shape) <= axis < len(shape) else 0,) * count
