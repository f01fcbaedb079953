"""Prove what an array is that is put together of elements of others: `SumProof.of`."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

import numpy as np

from .arithmetic import EPSILON
from .collectives import state_of_sum
from .combination import Bases, Combination, Factors
from .values import REPEATED, Dependence, Fact, Labels, Shares, Waypoint, join, labels_of, numbers

Kind = tuple[int, int]
"""A base and a sum, by their numbers."""


class SumProof:
    def __init__(self, shares: Shares, factors: Factors, bases: Bases) -> None:
        self.shares, self.factors, self.bases = shares, factors, bases

    def of(self, combination: Combination, value: Fact, at: str, reordered: bool) -> tuple[bool, Fact]:
        """Return whether the array is followed no further, and its value.

        `value` is the result of the instruction's own rule. `reordered`: the instruction may move elements.
        """
        unproven = False, dataclasses.replace(value)
        owners, sums = self.bases.of(combination.index), combination.sums
        pairs = np.unique(np.stack([owners[owners >= 0], sums[owners >= 0]]), axis=1).T.tolist()
        if not pairs:
            return unproven
        kinds = {(base, n): self._sum(self.bases.facts[base], n) for base, n in pairs}
        state = next(iter(kinds.values()))[0]
        if state == Dependence.UNKNOWN or any(k[0] != state for k in kinds.values()):
            return unproven
        rows = self._rows(owners, sums, {kind: bits for kind, (_, bits) in kinds.items()}, state)
        same, form = (self._labels(combination, owners, kinds, name) for name in ("same", "form"))
        used = [self.bases.facts[n] for n in sorted({base for base, _ in kinds})]
        summed = state == Dependence.COMPLETE and any(b.state != state for b in used)
        if rows is None or (summed and join(form, same) != form):
            # Devices with one function of all rows hold one number; if that is not seen, nothing is.
            return unproven
        several = any(np.count_nonzero(self.factors.rows[n]) > 1 for _, n in kinds)
        repeated = [self._repeated(combination, *kind) for kind in kinds] if several else []
        again = {Waypoint(m[0], at, m[1]) for m in repeated if m and m[0]}
        marks = frozenset().union(*(b.marks for b in used))
        marks |= combination.marks | again if several else frozenset()
        if not several and value.state != Dependence.UNKNOWN:
            # Elements without a second term are not added to themselves.
            marks |= {m for m in value.marks if m.at != at or m.kind not in REPEATED}
        total = state == Dependence.COMPLETE and (several or any(b.total for b in used))
        proven = dataclasses.replace(value, same=same, form=form, rows=rows, state=state, marks=marks)
        empty = frozenset(np.flatnonzero((combination.index < 0).all(1)).tolist())
        proven = dataclasses.replace(proven, zeros=empty, pieces=(), fresh=None, total=total)
        order = self._order(combination, owners) if summed else ""
        if order == "other":
            why = "the parts of a sum are put together in another order than they had"
            return True, proven if reordered else self.shares.unknown(at, why, proven)
        if any(m is not None for m in repeated):
            return not again, proven
        return order == "whole", proven

    def _sum(self, base: Fact, number: int) -> tuple[Dependence, int]:
        """Return a sum's state and the shares of the batch that it depends on."""
        row = self.factors.rows[number]
        heard = tuple(np.flatnonzero(row).tolist())
        bits = functools.reduce(int.__or__, (base.rows[d] for d in heard), 0)
        if base.state in (Dependence.FREE, Dependence.COMPLETE) or len(heard) == 1:
            return base.state, bits
        # Terms with other factors are other functions of their rows.
        form = labels_of(list(zip(numbers(base.form), row.tolist(), strict=True)))
        terms = tuple(d for d in heard if d not in base.zeros)
        weighted = dataclasses.replace(base, form=form)
        return state_of_sum(self.shares, weighted, {terms: terms}, (bits,))[0], bits

    def _rows(
        self, owners: np.ndarray, sums: np.ndarray, bits: dict[Kind, int], state: Dependence
    ) -> tuple[int, ...] | None:
        """Return the rows that each device's array depends on; None if parts of a partial sum differ."""
        if state in (Dependence.FREE, Dependence.COMPLETE):
            return self.shares.nothing if state == Dependence.FREE else self.shares.whole
        rows = []
        for device in range(self.shares.size):
            kinds = np.unique(np.stack([owners[device], sums[device]]), axis=1).T.tolist()
            several = {bits[base, n] for base, n in kinds if base >= 0}
            if state == Dependence.PARTIAL and len(several) > 1:
                return None
            rows.append(functools.reduce(int.__or__, several, 0))
        return self.shares.interned(rows)

    def _labels(
        self, combination: Combination, owners: np.ndarray, kinds: dict[Kind, tuple], name: str
    ) -> Labels:
        """Label the devices by their elements, each a sum of terms of the base's devices with one label."""
        named = np.full(owners.shape, -1, np.int64)
        keys: dict[tuple, int] = {}
        for base, n in kinds:
            row = self.factors.rows[n]
            numbered = np.array(numbers(getattr(self.bases.facts[base], name)))
            weights = np.round(np.bincount(numbered, row), 12)
            heard = np.flatnonzero(np.bincount(numbered, row != 0)).tolist()
            key = tuple((label, weights[label]) for label in heard)
            named[(owners == base) & (combination.sums == n)] = keys.setdefault(key, len(keys))
        pairs = zip(combination.index, named, strict=True)
        return labels_of([(a.tobytes(), b.tobytes()) for a, b in pairs])

    def _repeated(self, combination: Combination, number: int, n: int) -> tuple[str, str] | None:
        """Return a mark if equal numbers are added; its kind is empty if their mean is taken."""
        base, row = self.bases.facts[number], self.factors.rows[n]
        heard = [d for d in np.flatnonzero(row).tolist() if d not in base.zeros]
        if base.state == Dependence.FREE or len(heard) < 2:
            return None
        across = base.total and len({self.shares.of_device[d] for d in heard}) > 1
        labels = numbers(base.same)
        most = max(Counter(labels[d] for d in heard).values())
        if base.state == Dependence.LOCAL:
            # One function of the same rows: equal numbers, though each device has computed its own.
            functions = zip(base.rows, numbers(base.form), strict=True)
            most = max(most, *Counter(f for d, f in enumerate(functions) if d in heard).values())
        if not across and most < 2:
            return None
        if abs(row.sum() * combination.scale - 1) < EPSILON:
            return "", ""
        kind = "again" if across or base.state == Dependence.COMPLETE else "copies"
        return kind, str(len(heard) if across else most)

    def _order(self, combination: Combination, owners: np.ndarray) -> str:
        """Compare with the bases: "whole" if all devices have all of their elements in one order."""
        for index, bases in zip(combination.index, owners, strict=True):
            index, bases = index[bases >= 0], bases[bases >= 0]
            used = np.unique(bases).tolist()
            if len(index) * combination.grain < sum(map(self.bases.size, used)):
                return "part"
            if any((np.diff(index[bases == base]) != combination.grain).any() for base in used):
                return "other"
        return "whole"
