"""Sums over devices that are put together of moves and additions: rings, gathers, exchanges of slices.

Each element of such an array is a weighted sum, over devices, of one element of another array, a base.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from .values import Fact, Waypoint

MOST = 2**18
"""How many runs of elements are followed on all devices together."""
MOST_FACTORS = 2**24
ZERO = -1
"""The index of what is zero on a device: a buffer's first content, or what fills a shape up."""
DIGITS = 10
"""Factors that agree in these digits are equal; XLA adds them in other orders."""
Shape = tuple[int, ...]
Groups = tuple[tuple[int, ...], ...]


class NotFollowedError(Exception):
    """A result is no such sum, or has too many runs."""


class Factors:
    """The sums that occur: for each number a factor for every device. Number 0 is the empty sum."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.rows: list[np.ndarray] = []
        self._numbers: dict[bytes, int] = {}
        self._alone: np.ndarray | None = None
        self.number(np.zeros(devices))

    def number(self, row: np.ndarray) -> int:
        largest = float(np.abs(row).max()) or 1.0
        row = np.round(row / largest, DIGITS) * largest + 0.0
        key = row.tobytes()
        if key not in self._numbers:
            if len(self.rows) * self.devices > MOST_FACTORS:
                raise NotFollowedError
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]

    def alone(self) -> np.ndarray:
        """Number the sums of one term: on each device its own."""
        if self._alone is None:
            self._alone = np.array([[self.number(row)] for row in np.eye(self.devices)])
        return self._alone

    def added(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        pairs, inverse = np.unique(first * (len(self.rows) + 1) + second, return_inverse=True)
        a, b = np.divmod(pairs, len(self.rows) + 1)
        sums = [self.number(self.rows[x] + self.rows[y]) for x, y in zip(a, b, strict=True)]
        return np.array(sums)[inverse].reshape(first.shape)

    def scaled(self, sums: np.ndarray, by: float) -> np.ndarray:
        different, inverse = np.unique(sums, return_inverse=True)
        return np.array([self.number(self.rows[x] * by) for x in different])[inverse].reshape(sums.shape)


class Bases:
    """The arrays of which others are put together. Their elements are numbered one base after the other."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.starts = [0]
        self._numbers: dict[int, int] = {}

    def start(self, base: Fact, size: int) -> int:
        """Return the number of a base's first element."""
        if id(base) not in self._numbers:
            self._numbers[id(base)] = len(self.facts)
            self.facts.append(base)
            self.starts.append(self.starts[-1] + size)
        return self.starts[self._numbers[id(base)]]

    def size(self, number: int) -> int:
        return self.starts[number + 1] - self.starts[number]

    def of(self, index: np.ndarray) -> np.ndarray:
        """Return the number of each element's base; -1 for zeros."""
        return np.where(index >= 0, np.searchsorted(self.starts, index, "right") - 1, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Combination:
    """An array on every device, as runs of `grain` elements in the order of its elements.

    `index` [N, runs] is the base's element with which a run begins, `sums` [N, runs] the numbers of its
    factors, each times `scale`. `marks` has the collectives that it passed.
    """

    index: np.ndarray
    sums: np.ndarray
    grain: int
    scale: float = 1.0
    marks: frozenset[Waypoint] = frozenset()

    def of(self, index: np.ndarray, sums: np.ndarray, grain: int) -> Combination:
        devices = len(self.index)
        pairs = index.reshape(devices, -1), sums.reshape(devices, -1)
        return dataclasses.replace(self, index=pairs[0], sums=pairs[1], grain=grain)

    def refined(self, grain: int) -> Combination:
        """Cut the runs into runs of `grain` elements, which divides theirs."""
        parts = self.grain // grain
        if self.index.size * parts > MOST:
            raise NotFollowedError
        first = self.index[..., None]
        index = np.where(first >= 0, first + np.arange(parts) * grain, first)
        return self.of(index, np.repeat(self.sums[..., None], parts, -1), grain)

    def along(self, shape: Shape, axis: int, *cuts: int) -> tuple[Combination, int, int]:
        """Cut the runs so that none crosses a multiple of the lengths along an axis.

        Returns the result, and the sizes of the axes before and after this axis.
        """
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        step = math.gcd(shape[axis], *cuts)
        return self.refined(math.gcd(self.grain, inner * step)), outer, inner

    def sliced(self, shape: Shape, axis: int, starts: Sequence[int], length: int) -> Combination:
        """Take `length` elements along an axis, from a start for each device."""
        cut, outer, inner = self.along(shape, axis, length, *starts)
        per = inner, cut.grain
        views = [x.reshape(len(x), outer, -1) for x in (cut.index, cut.sums)]
        slices = [
            np.stack([x[d][:, s * per[0] // per[1] : (s + length) * per[0] // per[1]] for d, s in rows])
            for x, rows in ((v, list(enumerate(starts))) for v in views)
        ]
        return cut.of(slices[0], slices[1], cut.grain)

    def updated(
        self, shape: Shape, axis: int, starts: Sequence[int], part: Combination, length: int
    ) -> Combination:
        """Replace `length` elements along an axis, from a start for each device."""
        cut, outer, inner = self.along(shape, axis, length, *starts)
        grain = math.gcd(cut.grain, part.grain)
        cut, part = cut.refined(grain), part.refined(grain)
        done = []
        for old, new in ((cut.index, part.index), (cut.sums, part.sums)):
            view = old.reshape(len(old), outer, -1).copy()
            for device, start in enumerate(starts):
                piece = new[device].reshape(outer, -1)
                view[device][:, start * inner // grain :][:, : piece.shape[1]] = piece
            done.append(view)
        return cut.of(done[0], done[1], grain)

    def transposed(self, shape: Shape, order: Sequence[int]) -> Combination:
        fixed = len(shape)
        while fixed and order[fixed - 1] == fixed - 1:
            fixed -= 1
        cut = self.refined(math.gcd(self.grain, math.prod(shape[fixed:])))
        axes = (0, *(n + 1 for n in order[:fixed]), fixed + 1)
        views = [x.reshape(len(x), *shape[:fixed], -1).transpose(axes) for x in (cut.index, cut.sums)]
        return cut.of(views[0], views[1], cut.grain)

    def from_devices(self, sources: Sequence[int | None]) -> Combination:
        """Take each device's array from a source; without a source it is zero."""
        devices = [d or 0 for d in sources]
        silent = np.array([d is None for d in sources])[:, None]
        index, sums = np.where(silent, ZERO, self.index[devices]), np.where(silent, 0, self.sums[devices])
        return self.of(index, sums, self.grain)

    def gathered(self, shape: Shape, axis: int, groups: Groups) -> Combination:
        cut, outer, _ = self.along(shape, axis, shape[axis])
        if cut.index.size * len(groups[0]) > MOST:
            raise NotFollowedError
        numbers = {d: n for n, group in enumerate(groups) for d in group}
        both = []
        for x in (cut.index, cut.sums):
            view = x.reshape(len(x), outer, -1)
            collections = [np.concatenate(list(view[list(group)]), 1) for group in groups]
            both.append(np.stack(collections)[[numbers[d] for d in range(len(x))]])
        return cut.of(both[0], both[1], cut.grain)

    def exchanged(self, shape: Shape, axis: int, groups: Groups) -> Combination:
        """Send the n-th piece along an axis to the n-th device of the group."""
        count = len(groups[0])
        cut, outer, _ = self.along(shape, axis, shape[axis] // count)
        positions = {d: (group, n) for group in groups for n, d in enumerate(group)}
        order = [positions[d] for d in range(len(cut.index))]
        views = [x.reshape(len(x), outer, count, -1) for x in (cut.index, cut.sums)]
        both = [np.stack([np.stack([v[s][:, n] for s in group], 1) for group, n in order]) for v in views]
        return cut.of(both[0], both[1], cut.grain)

    def scaled(self, factors: Factors, scalars: Sequence[float]) -> Combination:
        if not np.isfinite(scalars).all():
            raise NotFollowedError
        if len(set(scalars)) == 1 and scalars[0] != 0:
            return dataclasses.replace(self, scale=self.scale * scalars[0])
        sums = np.stack([factors.scaled(x, by) for x, by in zip(self.sums, scalars, strict=True)])
        return self.of(np.where((sums == 0) & (self.index >= 0), ZERO, self.index), sums, self.grain)

    def at_scale(self, factors: Factors, scale: float) -> Combination:
        sums = factors.scaled(self.sums, self.scale / scale)
        return dataclasses.replace(self, sums=sums, scale=scale)

    def reduced(self, factors: Factors, shape: Shape, axis: int) -> Combination:
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        cut = self.refined(math.gcd(self.grain, inner))
        views = [x.reshape(len(x), outer, shape[axis], -1) for x in (cut.index, cut.sums)]
        pieces = [cut.of(views[0][:, :, n], views[1][:, :, n], cut.grain) for n in range(shape[axis])]
        return total(factors, pieces)

    def overlaps(self, groups: Groups) -> bool:
        """Return whether two devices of a group have something at one place."""
        return any(((self.index[list(group)] >= 0).sum(0) > 1).any() for group in groups)

    def over_groups(self, factors: Factors, groups: Groups) -> Combination:
        """Add the arrays of each group's devices."""
        group_of = {d: group for group in groups for d in group}
        sources = ([group_of[d][n] for d in range(len(self.index))] for n in range(len(groups[0])))
        return total(factors, [self.from_devices(devices) for devices in sources])


def alone(bases: Bases, base: Fact, size: int, factors: Factors) -> Combination:
    """The base itself."""
    sums = factors.alone()
    return Combination(np.full_like(sums, bases.start(base, size)), sums, size)


def zeros(devices: int, size: int) -> Combination:
    empty = np.zeros((devices, 1), np.int64)
    return Combination(empty + ZERO, empty, size)


def total(factors: Factors, terms: Sequence[Combination]) -> Combination:
    """Add arrays in which the same elements are in the same places."""
    first = terms[0]
    grain = math.gcd(*(t.grain for t in terms))
    cut = [t.refined(grain) for t in terms]
    cut = [t if t.scale == first.scale else t.at_scale(factors, first.scale) for t in cut]
    index = np.stack([t.index for t in cut]).max(0)
    if any(((t.index >= 0) & (t.index != index)).any() for t in cut):
        raise NotFollowedError
    sums = cut[0].sums
    for term in cut[1:]:
        sums = factors.added(sums, term.sums)
    index = np.where((sums == 0) & (index >= 0), ZERO, index)
    marks = frozenset().union(*(t.marks for t in terms))
    return dataclasses.replace(first.of(index, sums, grain), marks=marks)


def joined(factors: Factors, pieces: Sequence[tuple[Combination, Shape]], axis: int) -> Combination:
    """Put arrays together along an axis."""
    scale = pieces[0][0].scale
    pieces = [(c if c.scale == scale else c.at_scale(factors, scale), shape) for c, shape in pieces]
    cut = [c.along(shape, axis, shape[axis]) for c, shape in pieces]
    grain = math.gcd(*(c.grain for c, _, _ in cut))
    fine = [(c.refined(grain), outer) for c, outer, _ in cut]
    if sum(c.index.size for c, _ in fine) > MOST:
        raise NotFollowedError
    index, sums = (
        np.concatenate([getattr(c, name).reshape(len(c.index), outer, -1) for c, outer in fine], 2)
        for name in ("index", "sums")
    )
    marks = frozenset().union(*(c.marks for c, _ in fine))
    return dataclasses.replace(fine[0][0].of(index, sums, grain), marks=marks)
