"""The search for a cause: torch, departing from itself in one thing, until it gives what Flax gave.

A cause is named only if torch's own answer proves it. Nothing is assumed about Flax's code.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .._result import Cause
from .._sides.task import Named
from .._tensors import widened
from .catalogue import Variation, anything_wrong, variations
from .dataflow import Unknown
from .torch_trace import Departure, Op

Watch = Callable[[Departure], Named]
"""Runs torch with this departure; returns the arrays that Flax's are held against."""

Quick = Callable[[Departure], Named]
"""The same without a run of the model, where that can be had; Unknown where it cannot."""

EQUAL = 1e-10
SINGLE = 2.0**-20
"""How far a value in float32 may be from one in float64: some roundings."""
SHARE = 1e-5
"""A cause explains a difference if it leaves a smaller part of it, and no more than float32 does."""
TRIALS = 3000
"""For one place at most; a window of many calls has many variations."""
OPS = 60_000
"""Functions called in runs of the whole model, for one place at most; for all places three times as many."""
FEWEST = 40
"""Runs for one place that even a deep model has."""


class Trial(NamedTuple):
    """A departure, and in words what is right and what it does instead."""

    text: str
    departure: Departure


class Found(NamedTuple):
    """A trial that made torch equal to Flax. `departure` is empty where no run of torch was needed."""

    cause: Cause
    departure: Departure = Departure()


class Search:
    """Searches of one comparison: they share a number of runs, and what was found is tried first.

    Args:
      length: functions that a run of the model calls.
    """

    def __init__(self, length: int):
        self.most = max(FEWEST, OPS // max(length, 1))
        self.left = 3 * self.most
        self.known: set[str] = set()

    def first(
        self,
        stages: Iterable[Iterable[Trial]],
        watch: Watch,
        flax: Named,
        quick: Quick | None = None,
        before: float = 0.0,
    ) -> list[Found]:
        """Every trial of the first stage in which one explains Flax's arrays, the best first.

        Args:
          before: how far torch is from them without a departure. Both may have tables of float32 that differ
            by roundings, as rotary positions have; such a rest is allowed for.
        """
        rest = max(EQUAL, min(SINGLE, SHARE * before)) if math.isfinite(before) else EQUAL
        runs = _Runs(min(self.most, self.left), watch, quick, flax, rest)
        try:
            for stage in stages:
                trials = list(itertools.islice(stage, TRIALS))
                again = [trial for trial in trials if trial.text in self.known]
                for each in (again, trials):
                    if found := _explaining(each, runs):
                        self.known |= {one.cause.text for one in found}
                        return found
            return []
        finally:
            self.left -= runs.taken


@dataclasses.dataclass
class _Runs:
    """Runs of the model, as many as there may be."""

    most: int
    watch: Watch
    quick: Quick | None
    flax: Named
    rest: float
    taken: int = 0

    def apart(self, departure: Departure) -> float:
        """How far torch is from Flax then."""
        try:
            # The user did not make the wrong call, and is not to be warned of it. Python's filters and
            # torch's generator belong to the process; both are restored after every run.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                known = self._quickly(departure)
                if (known is None and self.taken == self.most) or (known is not None and known > self.rest):
                    return math.inf
                self.taken += known is None  # where Flax's result is had already, a run but confirms it
                return self._error(self.watch(departure))
        except Exception:
            # A wrong way that torch refuses is not what Flax did; the model may refuse by any error.
            return math.inf

    def _quickly(self, departure: Departure) -> float | None:
        """How far it is without a run; None if that is not known."""
        try:
            return self._error(self.quick(departure)) if self.quick else None
        except Unknown:
            return None

    def _error(self, changed: Named) -> float:
        errors = [relative_error(changed[name], x) for name, x in self.flax.items() if name in changed]
        return max(errors, default=math.inf)


def _explaining(trials: list[Trial], runs: _Runs) -> list[Found]:
    found = []
    for trial in trials:
        relative = runs.apart(trial.departure)
        if relative <= runs.rest:
            found.append(Found(Cause(trial.text, relative), trial.departure))
    if any(each.cause.relative <= EQUAL for each in found):
        found = [each for each in found if each.cause.relative <= EQUAL]
    # The same mistake in several calls is one cause; the call that explains most stands for it.
    best = {each.cause.text: each for each in sorted(found, key=lambda each: -each.cause.relative)}
    return sorted(best.values(), key=lambda each: each.cause.relative)


def known_mistakes(ops: Sequence[Op]) -> Iterator[list[Trial]]:
    """The catalogue's variations of these calls: one call at a time, then all calls of a kind together."""
    yield from _of(ops, variations)


def any_mistakes(ops: Sequence[Op]) -> Iterator[list[Trial]]:
    """What may be wrong with the result of any call: its place, its scale, its order, its type."""
    yield from _of(ops, anything_wrong)


Catalogue = Callable[[Sequence[Op], int], Iterator[Variation]]


def _of(ops: Sequence[Op], catalogue: Catalogue) -> Iterator[list[Trial]]:
    alike: dict[str, Departure] = {}
    single = []
    for index, variation in _all(ops, catalogue):
        departure = Departure({index: variation.change})
        single.append(Trial(variation.text, departure))
        alike[variation.text] = alike.get(variation.text, Departure()) | departure
    yield single
    # A function that splits heads wrongly does so for query, key and value.
    yield [Trial(text, departure) for text, departure in alike.items() if len(departure.changes) > 1]


def _all(ops: Sequence[Op], catalogue: Catalogue) -> Iterator[tuple[int, Variation]]:
    # The last first: what is wrong earlier has mostly been found at an earlier place.
    for place, op in reversed([*enumerate(ops)]):
        found = catalogue(ops, place)
        while True:
            try:
                with warnings.catch_warnings(action="ignore"):
                    variation = next(found, None)
            except (TypeError, KeyError, IndexError, AttributeError, ValueError, RuntimeError):
                break  # called in a way that the catalogue does not know
            if variation is None:
                break
            yield op.index, variation


def relative_error(c: np.ndarray, r: np.ndarray) -> float:
    """max|c - r| / max|r|, infinite where the shapes or the NaNs differ."""
    # NaN in one and not in the other is no small difference, and neither is another shape.
    if c.shape != r.shape or not np.array_equal(np.isfinite(c), np.isfinite(r)):
        return math.inf
    finite = np.isfinite(r)
    if not finite.any():
        return 0.0
    error = float(np.abs(widened(c) - widened(r))[finite].max())
    size = float(np.abs(widened(r))[finite].max())
    return error / size if size else (math.inf if error else 0.0)
