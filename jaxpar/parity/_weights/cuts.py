"""Cuts: a whole array and its pieces, there and back; nothing is computed, so gradients go the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ..._rulebook import Part
from ..._typing import Shape

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Cut:
    """Pieces of these sizes along an axis, `groups` times one after the other."""

    axis: int
    sizes: tuple[int, ...]
    groups: int = 1

    def pieces(self, whole: np.ndarray) -> list[np.ndarray]:
        axis, shape = self.axis % whole.ndim, whole.shape
        blocks = whole.reshape(*shape[:axis], self.groups, shape[axis] // self.groups, *shape[axis + 1 :])
        ends = np.cumsum(self.sizes)[:-1] // self.groups
        parts = np.split(blocks, ends, axis + 1)
        return [
            part.reshape(*shape[:axis], size, *shape[axis + 1 :])
            for part, size in zip(parts, self.sizes, strict=True)
        ]

    def whole(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        axis = self.axis % pieces[0].ndim
        before, after = pieces[0].shape[:axis], pieces[0].shape[axis + 1 :]
        blocks = [
            part.reshape(*before, self.groups, part.shape[axis] // self.groups, *after) for part in pieces
        ]
        return np.concatenate(blocks, axis + 1).reshape(*before, sum(self.sizes), *after)

    def fault(self, whole: Shape) -> str | None:
        """What keeps an array of this shape from being cut, if anything."""
        if not -len(whole) <= self.axis < len(whole):
            return f"it has no axis {self.axis}"
        length = whole[self.axis]
        if length != sum(self.sizes) or any(size % self.groups for size in self.sizes):
            groups = f" in {self.groups} groups" if self.groups > 1 else ""
            return f"axis {self.axis} has {length}, which is not {' + '.join(map(str, self.sizes))}{groups}"
        return None


@dataclasses.dataclass(frozen=True)
class Stack:
    """Pieces without the axis along which they are stacked."""

    axis: int

    def pieces(self, whole: np.ndarray) -> list[np.ndarray]:
        return list(np.moveaxis(whole, self.axis, 0))

    def whole(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(pieces, self.axis)


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Arrays that are really there, and those that pairing sees instead; one of both is the whole.

    Attributes:
      splits: whether `real` is the whole, and `seen` its pieces.
    """

    real: tuple[str, ...]
    seen: tuple[str, ...]
    cut: Cut | Stack
    splits: bool

    def to_seen(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        return self._moved(arrays, self.real, self.seen, self.splits)

    def to_real(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        return self._moved(arrays, self.seen, self.real, not self.splits)

    def _moved(
        self, arrays: Mapping[str, np.ndarray], given: tuple[str, ...], made: tuple[str, ...], splits: bool
    ) -> Arrays:
        if splits:
            return dict(zip(made, self.cut.pieces(arrays[given[0]]), strict=True))
        return {made[0]: self.cut.whole([arrays[name] for name in given])}


def joined(parts: Sequence[Part], torch: Sequence[Fusion], flax: Sequence[Fusion]) -> Part:
    """One part on the real arrays, of parts on those that pairing sees, and of what lies between the two."""
    torch_seen, flax_seen = ({n for f in fusions for n in f.seen} for fusions in (torch, flax))
    there = [n for p in parts for n in p.torch if n not in torch_seen]
    here = [n for p in parts for n in p.flax if n not in flax_seen]
    names = tuple(dict.fromkeys([n for f in torch for n in f.real] + there))
    leaves = tuple(dict.fromkeys([n for f in flax for n in f.real] + here))

    def forth(arrays: tuple[np.ndarray, ...], gradient: bool) -> tuple[np.ndarray, ...]:
        known = dict(zip(names, arrays, strict=True))
        for fusion in torch:
            known |= fusion.to_seen(known)
        made: Arrays = {}
        for part in parts:
            made |= zip(part.flax, part.forth([known[n] for n in part.torch], gradient), strict=True)
        for fusion in flax:
            made |= fusion.to_real(made)
        return tuple(made[leaf] for leaf in leaves)

    def back(arrays: tuple[np.ndarray, ...], gradient: bool) -> tuple[np.ndarray, ...]:
        known = dict(zip(leaves, arrays, strict=True))
        for fusion in flax:
            known |= fusion.to_seen(known)
        made: Arrays = {}
        for part in parts:
            made |= zip(part.torch, part.back([known[n] for n in part.flax], gradient), strict=True)
        for fusion in torch:
            made |= fusion.to_real(made)
        return tuple(made[name] for name in names)

    return Part(
        names,
        leaves,
        lambda *arrays: forth(arrays, False),
        lambda *arrays: back(arrays, False),
        lambda *arrays: forth(arrays, True),
        lambda *arrays: back(arrays, True),
    )
