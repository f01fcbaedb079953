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

from .._comparison_data import Cause
from .._sides.step_data import Named
from .._tensors import widened
from .catalogue import Variation, anything_wrong, variations
from .dataflow import NotRecomputable
from .torch_trace import Departure, Op

Watch = Callable[[Departure], Named]
"""Runs torch with this departure; returns the arrays that Flax's are held against."""

Quick = Callable[[Departure], Named]
"""The same without a run of the model, where that can be had; NotRecomputable where it cannot."""

EQUAL = 1e-10
SINGLE = 2.0**-20
"""How far a value in float32 may be from one in float64: some roundings."""
SHARE = 1e-5
"""A cause explains a difference if it leaves a smaller part of it, and no more than float32 does."""
HYPOTHESES = 3000
"""For one place at most; a window of many calls has many variations."""
OPS = 60_000
"""Functions called in runs of the whole model, for one place at most; for all places three times as many."""
FEWEST = 40
"""Runs for one place that even a deep model has."""


class Hypothesis(NamedTuple):
    """A departure, and in words what is right and what it does instead."""

    text: str
    departure: Departure


class Explanation(NamedTuple):
    """A hypothesis that made torch equal to Flax. `departure` is empty where no run of torch was needed."""

    cause: Cause
    departure: Departure = Departure()


class Search:
    """Searches of one comparison: they share a number of runs, and what was found is tried first.

    Args:
      length: functions that a run of the model calls.
    """

    def __init__(self, length: int):
        self.limit = max(FEWEST, OPS // max(length, 1))
        self.remaining = 3 * self.limit
        self.explained: set[str] = set()

    def first(
        self,
        stages: Iterable[Iterable[Hypothesis]],
        watch: Watch,
        flax: Named,
        quick: Quick | None = None,
        before: float = 0.0,
    ) -> list[Explanation]:
        """Every hypothesis of the first stage in which one explains Flax's arrays, the best first.

        Args:
          before: how far torch is from them without a departure. Both may have tables of float32 that differ
            by roundings, as rotary positions have; such a rest is allowed for.
        """
        tolerance = max(EQUAL, min(SINGLE, SHARE * before)) if math.isfinite(before) else EQUAL
        runs = _Runs(min(self.limit, self.remaining), watch, quick, flax, tolerance)
        try:
            for stage in stages:
                hypotheses = list(itertools.islice(stage, HYPOTHESES))
                again = [hypothesis for hypothesis in hypotheses if hypothesis.text in self.explained]
                for batch in (again, hypotheses):
                    if explanations := _explaining(batch, runs):
                        self.explained |= {one.cause.text for one in explanations}
                        return explanations
            return []
        finally:
            self.remaining -= runs.used


@dataclasses.dataclass
class _Runs:
    """Runs of the model, as many as there may be."""

    limit: int
    watch: Watch
    quick: Quick | None
    flax: Named
    tolerance: float
    used: int = 0

    def apart(self, departure: Departure) -> float:
        """How far torch is from Flax then."""
        try:
            # The user did not make the wrong call, and is not to be warned of it. Python's filters and
            # torch's generator belong to the process; both are restored after every run.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                quick_error = self._quickly(departure)
                if (quick_error is None and self.used == self.limit) or (
                    quick_error is not None and quick_error > self.tolerance
                ):
                    return math.inf
                self.used += quick_error is None  # where Flax's result is had already, a run but confirms it
                return self._error(self.watch(departure))
        except Exception:
            # A wrong way that torch refuses is not what Flax did; the model may refuse by any error.
            return math.inf

    def _quickly(self, departure: Departure) -> float | None:
        """How far it is without a run; None if that is not known."""
        try:
            return self._error(self.quick(departure)) if self.quick else None
        except NotRecomputable:
            return None

    def _error(self, changed: Named) -> float:
        errors = [relative_error(changed[name], x) for name, x in self.flax.items() if name in changed]
        return max(errors, default=math.inf)


def _explaining(hypotheses: list[Hypothesis], runs: _Runs) -> list[Explanation]:
    explanations = []
    for hypothesis in hypotheses:
        relative = runs.apart(hypothesis.departure)
        if relative <= runs.tolerance:
            explanations.append(Explanation(Cause(hypothesis.text, relative), hypothesis.departure))
    if any(explanation.cause.relative <= EQUAL for explanation in explanations):
        explanations = [explanation for explanation in explanations if explanation.cause.relative <= EQUAL]
    # The same mistake in several calls is one cause; the call that explains most stands for it.
    best = {
        explanation.cause.text: explanation
        for explanation in sorted(explanations, key=lambda explanation: -explanation.cause.relative)
    }
    return sorted(best.values(), key=lambda explanation: explanation.cause.relative)


def known_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """The catalogue's variations of these calls: one call at a time, then all calls of a kind together."""
    yield from _of(ops, variations)


def any_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """What may be wrong with the result of any call: its place, its scale, its order, its type."""
    yield from _of(ops, anything_wrong)


Catalogue = Callable[[Sequence[Op], int], Iterator[Variation]]


def _of(ops: Sequence[Op], catalogue: Catalogue) -> Iterator[list[Hypothesis]]:
    alike: dict[str, Departure] = {}
    single = []
    for index, variation in _all(ops, catalogue):
        departure = Departure({index: variation.change})
        single.append(Hypothesis(variation.text, departure))
        alike[variation.text] = alike.get(variation.text, Departure()) | departure
    yield single
    # A function that splits heads wrongly does so for query, key and value.
    yield [Hypothesis(text, departure) for text, departure in alike.items() if len(departure.changes) > 1]


def _all(ops: Sequence[Op], catalogue: Catalogue) -> Iterator[tuple[int, Variation]]:
    # The last first: what is wrong earlier has mostly been found at an earlier place.
    for position, op in reversed([*enumerate(ops)]):
        wrong_calls = catalogue(ops, position)
        while True:
            try:
                with warnings.catch_warnings(action="ignore"):
                    variation = next(wrong_calls, None)
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
