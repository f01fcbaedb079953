"""Search for causes: run torch with one change at a time until it computes Flax's arrays.

A cause is reported only if a run of torch proves it. Nothing is assumed about Flax's code.
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

Watch = Callable[[Departure], Named]  # runs torch with a departure; returns the arrays to compare with Flax's
Quick = Callable[[Departure], Named]  # the same without a run, or raises NotRecomputable

EQUAL = 1e-10
SINGLE = 2.0**-20  # how far float32 values may be from float64 ones: a few roundings
# A cause explains a difference if it leaves at most this share of the difference, and at most SINGLE.
SHARE = 1e-5
HYPOTHESES = 3000  # per site; a window of many calls has many variations
OPS = 60_000  # function calls in runs of the whole model, per site; three times as many for all sites
FEWEST = 40  # the minimum number of runs per site, for deep models


class Hypothesis(NamedTuple):
    """A departure, and a text that describes the right behaviour and the departure's."""

    text: str
    departure: Departure


class Explanation(NamedTuple):
    """A hypothesis that made torch equal to Flax; its departure is empty if no run was needed."""

    cause: Cause
    departure: Departure = Departure()


def causes_of(explanations: Iterable[Explanation]) -> tuple[Cause, ...]:
    return tuple(explanation.cause for explanation in explanations)


class Search:
    """The searches of one comparison, which share a budget of runs and try earlier explanations first."""

    # `length` is the number of functions that a run of the model calls.
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
        """Return the hypotheses of the first stage that explains Flax's arrays, the best first."""
        # A small part of `before`, the error without a departure, may remain, because tables of float32, such
        # as rotary positions, may differ by rounding.
        tolerance = max(EQUAL, min(SINGLE, SHARE * before)) if math.isfinite(before) else EQUAL
        runs = _Runs(min(self.limit, self.remaining), watch, quick, flax, tolerance)
        # Later stages are never needed once an earlier one explains the difference, so they stay unevaluated.
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
    limit: int
    watch: Watch
    quick: Quick | None
    flax: Named
    tolerance: float
    used: int = 0

    def apart(self, departure: Departure) -> float:
        """Return torch's error relative to Flax under the departure; inf if rejected."""
        try:
            # A warning about a deliberately wrong call would confuse the user. Python's filters and torch's
            # generator belong to the process, so both are restored after every run.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                quick_error = self._quickly(departure)
                if (quick_error is None and self.used == self.limit) or (
                    quick_error is not None and quick_error > self.tolerance
                ):
                    return math.inf
                self.used += quick_error is None  # where Flax's result is had already, a run but confirms it
                return self._error(self.watch(departure))
        except Exception:
            # If torch rejects the change, Flax did not do the same. The model's code may raise anything.
            return math.inf

    def _quickly(self, departure: Departure) -> float | None:
        """Return the error without a run, or None if a run is needed."""
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
    # One mistake in several calls is one cause; keep the call that explains most.
    best = {
        explanation.cause.text: explanation
        for explanation in sorted(explanations, key=lambda explanation: -explanation.cause.relative)
    }
    return sorted(best.values(), key=lambda explanation: explanation.cause.relative)


def known_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """Yield the catalogue's variations: of one call at a time, then of all calls of a kind together."""
    yield from _of(ops, variations)


def any_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """Yield changes to any call's result: its position, scale, order and dtype."""
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
    # A mistake often repeats: a helper that splits heads wrongly does so for query, key and value.
    yield [Hypothesis(text, departure) for text, departure in alike.items() if len(departure.changes) > 1]


def _all(ops: Sequence[Op], catalogue: Catalogue) -> Iterator[tuple[int, Variation]]:
    # In reverse order, because mistakes in earlier calls were usually found at an earlier site.
    for position, op in reversed([*enumerate(ops)]):
        wrong_calls = catalogue(ops, position)
        while True:
            try:
                with warnings.catch_warnings(action="ignore"):
                    variation = next(wrong_calls, None)
            except (TypeError, KeyError, IndexError, AttributeError, ValueError, RuntimeError):
                break  # the call has a form that the catalogue does not cover
            if variation is None:
                break
            yield op.index, variation


def relative_error(c: np.ndarray, r: np.ndarray) -> float:
    """Return max|c - r| / max|r|; infinite if the shapes or the positions of NaNs and infinities differ."""
    if c.shape != r.shape or not np.array_equal(np.isfinite(c), np.isfinite(r)):
        return math.inf
    finite = np.isfinite(r)
    if not finite.any():
        return 0.0
    error = float(np.abs(widened(c) - widened(r))[finite].max())
    size = float(np.abs(widened(r))[finite].max())
    return error / size if size else (math.inf if error else 0.0)
