"""The numbers of the slices that the devices hold: slices in a different order are not proven."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from .values import Slices, labels_of


def numbered(offsets: Sequence[int], length: int) -> Slices:
    """Return the numbers of the slices of this length that begin at the devices' offsets.

    >>> numbered([0, 4, 8, 12], 4)
    frozenset({(0, 1, 2, 3)})
    """
    is_cut = len(set(offsets)) > 1 and not any(n % length for n in offsets)
    return frozenset({tuple(n // length for n in offsets)} if is_cut else ())


def cut_again(slices: Slices, numbers: Slices) -> Slices:
    """Return the slices of an array that is cut once more, maybe along the same axis.

    >>> sorted(cut_again(frozenset({(0, 0, 1, 1)}), frozenset({(0, 1, 0, 1)})))
    [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3)]
    """
    pairs = itertools.product(slices, numbers)
    nested = (tuple(a * (max(y) + 1) + b for a, b in zip(x, y, strict=True)) for x, y in pairs)
    return slices | numbers | frozenset(nested)


def disordered(slices: Iterable[tuple[int, ...]]) -> bool:
    """Return whether two arrays are cut for the same devices, and in different orders.

    >>> disordered([(0, 0, 1, 1), (0, 1, 0, 1)]), disordered([(0, 0, 1, 1), (1, 1, 0, 0)])
    (False, True)
    """
    return any(a != b and labels_of(a) == labels_of(b) for a, b in itertools.combinations(slices, 2))


def collected_in_order(slices: Slices, groups: Sequence[Sequence[int]]) -> bool:
    """Return whether the devices of each group hold consecutive slices, if they hold different ones."""
    sequences = ([numbers[d] for d in group] for numbers in slices for group in groups)
    return all(len(set(x)) < len(x) or x == list(range(x[0], x[0] + len(x))) for x in sequences)


def equal_in(slices: Slices, groups: Sequence[Sequence[int]]) -> Slices:
    """Return the ways of cutting in which all devices of a group hold the same slice."""
    return frozenset(x for x in slices if all(len({x[d] for d in group}) == 1 for group in groups))


def independent(slices: Slices, others: Slices) -> Slices:
    """Return the ways of cutting along other axes of the mesh than all of these.

    >>> sorted(independent(frozenset({(0, 0, 1, 1), (0, 1, 0, 1)}), frozenset({(0, 1, 0, 1)})))
    [(0, 0, 1, 1)]
    """
    pairs = {x: [{*zip(x, y, strict=True)} for y in others] for x in slices}
    counts = [len({*y}) for y in others]
    return frozenset(
        x for x in slices if [len(p) for p in pairs[x]] == [len({*x}) * count for count in counts]
    )
