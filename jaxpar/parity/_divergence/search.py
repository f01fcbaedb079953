"""Search for causes: run torch, or what a change affects, until it computes Flax's arrays.

A cause is reported only if a run of torch proves it. Nothing is assumed about Flax's code.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from .._comparison_data import Cause
from .._sides.step_data import Named
from .._tensors import tensor_of
from .array_changes import EQUAL, relative_error, tolerance
from .catalogue import Variation, anything, other_arrays, variations
from .torch_trace import Departure, LayerCall, Op, Trace, storage, tensors

Watch = Callable[[Departure], Named]  # runs torch with a departure; returns the arrays to compare with Flax's
Quick = Callable[[Departure], Named]  # the same without a run, or raises NotRecomputable

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


class Budget:
    """The time of one search, which Ctrl-C ends as well; `check` raises KeyboardInterrupt after one."""

    def __init__(self, seconds: float = math.inf, check: Callable[[], None] = lambda: None):
        self._check, self.seconds, self._end = check, seconds, time.monotonic() + seconds
        self.interrupted = self.exceeded = False

    @property
    def over(self) -> bool:
        try:
            self._check()
        except KeyboardInterrupt:
            self.interrupted = True
        self.exceeded = self.exceeded or self.interrupted or time.monotonic() > self._end
        return self.exceeded


class Search:
    """The searches of one comparison, which share a budget of runs and try earlier explanations first."""

    # `length` is the number of functions that a run of the model calls.
    def __init__(self, length: int, budget: Budget):
        self.budget = budget
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
        within = tolerance(before)
        runs = _Runs(self.budget, min(self.limit, self.remaining), watch, quick, flax, within)
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
    budget: Budget
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
        if runs.budget.over:
            break
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


def repeated_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """Yield variations of all calls of one line together, because a function may compute several layers.

    Then all calls of a kind, as in `known_mistakes`.
    """
    lines = {op.index: op.line for op in ops}
    repeated: dict[tuple[str, str, int], Departure] = {}
    alike: dict[int, Counter[str]] = {}
    for index, variation in _all(ops, variations):
        # A call's variations may have one text, such as either operand that is left out.
        nth = alike.setdefault(index, Counter())[variation.text]
        alike[index][variation.text] += 1
        key = lines[index], variation.text, nth
        repeated[key] = repeated.get(key, Departure()) | Departure({index: variation.change})
    yield [Hypothesis(text, departure) for (_, text, _), departure in repeated.items()]
    *_, of_a_kind = _of(ops, variations)
    yield of_a_kind


def any_mistakes(ops: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """Yield changes to any call's result: its position, scale, order and dtype."""
    yield from _of(ops, anything)


def exchanged_arrays(ops: Sequence[Op], users: Sequence[Op]) -> Iterator[list[Hypothesis]]:
    """Yield calls that take an array of a different call, one of the users."""
    yield from _of(ops, partial(other_arrays, users))


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


# Recomputing only what a departure affects rejects most hypotheses at the cost of a few calls; for those that
# pass, a run of the model decides.
class NotRecomputable(Exception):
    """The result needs a run: a function works in place or draws random numbers, or is outside the trace."""


class Dataflow:
    """The functions between the layers up to op `end`, or inside `layer_call`; the layers are not called."""

    def __init__(self, trace: Trace, end: int, layer_call: LayerCall | None = None):
        self.trace, self.end = trace, end
        skipped = trace.inside
        within = range(layer_call.first, layer_call.last) if layer_call else ()
        self.ops = [
            op for op in trace.ops[:end] if (op.index in within if layer_call else op.index not in skipped)
        ]
        self._reads = [[id(x) for x in tensors((op.args, op.kwargs))] for op in self.ops]
        self._last_written = {address: op.index for op in trace.ops for address in op.written}

    def after(self, departure: Departure, target: torch.Tensor) -> torch.Tensor | None:
        """Return the value of `target` under the departure; None if the departure does not affect it."""
        return self.all_after(departure).get(id(target))

    def all_after(self, departure: Departure) -> dict[int, torch.Tensor]:
        """Return the values of all tensors that the departure affects, by the id of the recorded one."""
        if departure.inputs:
            raise NotRecomputable
        instead = dict(self._returned(departure))
        # Only ops downstream of a changed tensor are called again; all others keep their recorded results.
        for op, reads in zip(self.ops, self._reads, strict=True):
            change = departure.changes.get(op.index)
            if change is None and not any(tensor_id in instead for tensor_id in reads):
                continue
            if self._is_lost(op):
                raise NotRecomputable
            args, kwargs = with_tensors((op.args, op.kwargs), instead)
            before = torch.random.get_rng_state()
            result = change(op.function, args, kwargs) if change else op.function(*args, **kwargs)
            if not torch.equal(before, torch.random.get_rng_state()):
                raise NotRecomputable  # it would draw different numbers than in the model's order of calls
            old, new = tensors(op.result), tensors(result)
            instead |= {id(x): y for x, y in zip(old, new, strict=False)}
        return instead

    def _is_lost(self, op: Op) -> bool:
        """Whether the function's arguments have been overwritten, so that it cannot be called again."""
        # The kernel that updates running averages does not increment the tensors' versions.
        counts = any(x is True for x in (*op.args, *op.kwargs.values()))
        if op.written or (op.name in ("batch_norm", "instance_norm") and counts):
            return True
        read = (storage(x) for x in tensors((op.args, op.kwargs)))
        return any(self._last_written.get(address, -1) > op.index for address in read)

    def _returned(self, departure: Departure) -> Iterator[tuple[int, torch.Tensor]]:
        for call in self.trace.calls:
            other = departure.exchanged.get(call.path)
            partner = self.trace.call((other, call.nth)) if other else None
            arrays = partner.outputs if partner else departure.outputs.get(call.key, ())
            for tensor, array in zip(call.output_tensors, arrays, strict=False):
                yield id(tensor), tensor_of(array.copy()).to(tensor.dtype)


def with_tensors(tree: Any, instead: dict[int, torch.Tensor]) -> Any:
    """Return the tree with tensors replaced by id; other leaves and unknown containers are kept."""
    if isinstance(tree, dict):
        return {name: with_tensors(x, instead) for name, x in tree.items()}
    # A namedtuple or torch.Size cannot be rebuilt from a generator, so only plain tuples and lists are
    # entered.
    if isinstance(tree, tuple | list) and type(tree) in (tuple, list):
        return type(tree)(with_tensors(x, instead) for x in tree)
    return instead.get(id(tree), tree) if isinstance(tree, torch.Tensor) else tree


def quick(
    flow: Dataflow, call: LayerCall, index: int, which: str, departure: Departure
) -> Sequence[torch.Tensor]:
    """Return one tensor of a layer's call under the departure, without a run; [] if it is unaffected."""
    path = departure.exchanged.get(call.path, call.path)
    same = flow.trace.call((path, call.nth))
    if same is None:
        return []
    if same.first > flow.end:
        raise NotRecomputable
    target = (same.input_tensors if which == "inputs" else same.computed)[index]
    recomputed = flow.after(departure, target)
    # An exchanged layer gets its partner's inputs, whether or not these have changed.
    return [recomputed] if recomputed is not None else [target] if path != call.path else []
