"""What is proven of an array in a compiled program, on all devices at once.

A compiled program is the text that every device runs. An instruction's result is abstracted to a `Fact`:

* `same`: devices with one label hold equal numbers.
* `form`: devices with one label apply the same function to their own rows. It is `same` of a program in which
  all devices had the same rows.
* `rows`: the shares of the batch that a device's number can depend on. Devices in a share hold the same rows.
* `state`: how the number depends on them, see `Dependence`.

Everything else is unknown, and an unknown value stays unknown.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Dependence(enum.IntEnum):
    """The order matters: of several operands the highest state decides."""

    FREE = 0
    """It does not depend on the batch."""
    COMPLETE = 1
    """It depends on the batch through complete sums only: each share's term once, all of the same form."""
    LOCAL = 2
    """It is any function of the rows in `rows`; devices of one `form` have the same function."""
    PARTIAL = 3
    """It is a sum of one function over the shares in `rows`, which are not all."""
    UNKNOWN = 4


class Waypoint(NamedTuple):
    """Something on the way to a value: `kind` is a reduction's or a finding's, `at` is its instruction."""

    kind: str
    at: str
    text: str = ""


REPEATED = ("again", "copies", "passed")
"""The kinds of waypoints at which equal terms are added, or may be."""

Labels = bytes
"""One int32 for each device, numbered by first occurrence, so that equal partitions are equal bytes."""
UNIFORM: Labels = b""
Slices = frozenset[tuple[int, ...]]
"""For each way in which an array was cut, the number of the slice that each device holds."""


def labels_of(keys: Any) -> Labels:
    """Number the keys of all devices: an array [N] or any hashable objects."""
    if not isinstance(keys, np.ndarray):
        numbers: dict[Hashable, int] = {}
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32).tobytes()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int32).tobytes()


@functools.lru_cache(4096)
def numbers(labels: Labels) -> tuple[int, ...]:
    return tuple(np.frombuffer(labels, np.int32).tolist())


@functools.lru_cache(4096)
def join(first: Labels, second: Labels) -> Labels:
    """Devices are alike if they are alike in both."""
    if first == second or not second:
        return first
    if not first:
        return second
    a, b = (np.frombuffer(x, np.int32).astype(np.int64) for x in (first, second))
    return labels_of(a * (len(b) + 1) + b)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A scalar, or an array of one scalar, that is constant: one number for all devices, or one for each."""

    numbers: tuple[Any, ...]

    def on(self, device: int) -> Any:
        return self.numbers[device % len(self.numbers)]


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    same: Labels
    form: Labels
    rows: tuple[int, ...]
    state: Dependence = Dependence.FREE
    marks: frozenset[Waypoint] = frozenset()
    constant: Known | None = None
    table: tuple[int, ...] | None = None
    """The numbers of a small constant of one axis."""
    zeros: frozenset[int] = frozenset()
    """The devices on which it is zero."""
    random: bool = False
    batch: bool = False
    """It is an argument's rows, as they came."""
    carry: int | None = None
    """It is this element of the state of the innermost loop, as the turn found it."""
    grows: int | None = None
    """It is this element of the state plus a sum over all devices."""
    fresh: str | None = None
    """It is what this reduction returned."""
    total: bool = False
    """One of its terms is a complete sum, times numbers that do not depend on the batch."""
    influence: Labels | None = None
    """Devices with one label get equal numbers from the batch: each element is a function of these and of
    numbers that do not depend on the batch. `UNIFORM` if they are scalars; None if it is `same`."""
    scalars: Labels = UNIFORM
    """Devices with one label combine the array with equal scalars of the batch; UNIFORM if all devices do."""
    slices: Slices = frozenset()
    pieces: tuple[tuple[int, Fact], ...] = ()
    """Length and value of each of the arrays that were put together along their only axis."""

    def marked(self, *marks: Waypoint) -> Fact:
        return dataclasses.replace(self, marks=self.marks | set(marks))


Result = Fact | tuple["Result", ...]
"""A tuple's value is a tuple of values."""


class Shares:
    """The devices of a program, and how the batch is divided between them."""

    def __init__(self, share_numbers: Sequence[int]) -> None:
        self.of_device = tuple(share_numbers)
        self.size = len(self.of_device)
        self.everything = functools.reduce(int.__or__, (1 << k for k in share_numbers), 0)
        self.alike = labels_of(np.zeros(self.size, np.int32))
        self.apart = labels_of(np.arange(self.size))
        self.nothing = (0,) * self.size
        self.whole = (self.everything,) * self.size
        self.all = frozenset(range(self.size))
        self.free = Fact(self.alike, self.alike, self.nothing)
        self._interned: dict[tuple[int, ...], tuple[int, ...]] = {x: x for x in (self.nothing, self.whole)}

    def interned(self, rows: Iterable[int]) -> tuple[int, ...]:
        rows = tuple(rows)
        return self._interned.setdefault(rows, rows)

    def union(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        # Most values depend on the same rows, and then nothing is compared.
        if first is second or second is self.nothing:
            return first
        if first is self.nothing:
            return second
        return self.interned(a | b for a, b in zip(first, second, strict=True))

    def unknown(self, at: str, why: str, *operands: Fact) -> Fact:
        """A value of which nothing is proven."""
        marks = frozenset().union(*(v.marks for v in operands))
        rows = functools.reduce(self.union, (v.rows for v in operands), self.nothing)
        return Fact(self.apart, self.apart, rows, Dependence.UNKNOWN, marks | {Waypoint("unknown", at, why)})

    def chosen(self, at: str, index: Fact, options: Sequence[Fact]) -> Fact:
        """On each device the option whose number is constant there."""
        assert index.constant is not None
        picks = [min(max(int(index.constant.on(d)), 0), len(options) - 1) for d in range(self.size)]
        options_used = [options[i] for i in sorted(set(picks))]
        if len(options_used) == 1:
            return options_used[0]
        same, form = (
            labels_of([-1 if d in options[i].zeros else (i, numbered[i][d]) for d, i in enumerate(picks)])
            for numbered in ([numbers(v.same) for v in options], [numbers(v.form) for v in options])
        )
        rows = self.interned(0 if d in options[i].zeros else options[i].rows[d] for d, i in enumerate(picks))
        zeros = frozenset(d for d, i in enumerate(picks) if d in options[i].zeros)
        value = self.combined(at, options_used, "sum")
        total = any(v.total for v in options_used)
        return dataclasses.replace(value, same=same, form=form, rows=rows, zeros=zeros, total=total)

    def of_known(self, scalars: Sequence[Any]) -> Fact:
        """A scalar that is constant on every device."""
        if len(set(scalars)) == 1:
            zeros = self.all if scalars[0] == 0 else frozenset()
            return dataclasses.replace(self.free, constant=Known((scalars[0],)), zeros=zeros)
        labels = labels_of(scalars)
        zeros = frozenset(d for d, x in enumerate(scalars) if x == 0)
        return Fact(labels, labels, self.nothing, constant=Known(tuple(scalars)), zeros=zeros)

    def combined(self, at: str, operands: Sequence[Fact], kind: str = "any") -> Fact:
        """An instruction without a rule of its own whose result is a function of its operands.

        `kind`: "linear" in the first operand, "sum" and "product" of all operands, or "any".
        """
        if not operands:
            return self.free
        first = operands[0]
        same = functools.reduce(join, (v.same for v in operands))
        form = functools.reduce(join, (v.form for v in operands))
        marks = frozenset().union(*(v.marks for v in operands)) if len(operands) > 1 else first.marks
        state = max(v.state for v in operands)
        slices = frozenset().union(*(v.slices for v in operands)) if len(operands) > 1 else first.slices
        # A complete sum is a number like a parameter: what is computed of both is a function of the share.
        counted = [v.rows for v in operands if v.state > Dependence.COMPLETE] or [v.rows for v in operands]
        rows = functools.reduce(self.union, counted)
        if state == Dependence.PARTIAL and not self._stays_partial(operands, kind):
            why = "a sum over a part of the devices is used before it is complete"
            return Fact(same, form, rows, Dependence.UNKNOWN, marks | {Waypoint("unknown", at, why)})
        zeros = first.zeros
        if kind == "product":
            zeros = zeros.union(*(v.zeros for v in operands))
        elif kind == "sum":
            zeros = zeros.intersection(*(v.zeros for v in operands))
        elif kind != "linear":
            zeros = frozenset()
        if zeros and rows is not self.nothing:
            rows = self.interned(0 if d in zeros else r for d, r in enumerate(rows))
        if 0 < len(zeros) < self.size:
            same, form = (
                labels_of([-1 if d in zeros else x for d, x in enumerate(numbers(y))]) for y in (same, form)
            )
        return Fact(same, form, rows, state, marks, zeros=zeros, slices=slices)

    def _stays_partial(self, operands: Sequence[Fact], kind: str) -> bool:
        partial = [v for v in operands if v.state == Dependence.PARTIAL]
        if any(v.state == Dependence.LOCAL for v in operands):
            return False
        if kind == "sum":
            return len({v.rows for v in partial}) == 1
        return len(partial) == 1 and (kind == "product" or (kind == "linear" and partial[0] is operands[0]))

    def merged(self, at: str, first: Result, second: Result) -> Result:
        """Either of the two, and on all devices the same one: a loop's state before or after a turn."""
        if isinstance(first, tuple) or isinstance(second, tuple):
            if isinstance(first, tuple) and isinstance(second, tuple):
                return tuple(self.merged(at, a, b) for a, b in zip(first, second, strict=True))
            return self.unknown(at, "a tuple of which a part is unknown", *leaves(first), *leaves(second))
        if first == second:
            return first
        value = self.combined(at, (first, second), "sum")
        constant = first.constant if first.constant == second.constant else None
        value = dataclasses.replace(
            value,
            constant=constant,
            random=first.random or second.random,
            zeros=first.zeros & second.zeros,
            total=first.total or second.total,
            scalars=join(first.scalars, second.scalars),
        )
        return with_influence(value, (first, second))


def with_influence(value: Fact, operands: Iterable[Fact]) -> Fact:
    """Return an array that combines these element by element, with the influence of the batch on it."""
    labels = [v.same if v.influence is None else v.influence for v in operands if v.state != Dependence.FREE]
    influence = functools.reduce(join, filter(None, labels), UNIFORM)
    return dataclasses.replace(value, influence=None if influence == value.same else influence)


def leaves(result: Result) -> list[Fact]:
    return [v for r in result for v in leaves(r)] if isinstance(result, tuple) else [result]
