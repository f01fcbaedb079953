"""Search through neighbouring sources: edits of the port's code that agree at the first place that differs.

Each is tried in a run of the code alone, where layers return torch's arrays, or, where the place is in the
backward pass or the optimizer, in a comparison without a search. A number may be fitted to torch's array.
"""

from __future__ import annotations

import ast
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._comparison_data import Divergence
from .._divergence.array_changes import EQUAL, relative_error, tolerance
from .._exactness import exact
from .._trace.reading import TraceFile
from .live import Live
from .neighbours import Surroundings, neighbours
from .neighbours.edit import Texts
from .neighbours.numbers import FACTOR
from .plain_edits import numbers
from .plain_run import (
    LOSS,
    LineEvents,
    PlainRun,
    Wrong,
    is_forward,
    lines_before,
    lines_near,
)
from .source import Code, last_name

SECONDS_OF_RUN = 5.0  # after which one edit's run is given up
MORE_RUNS = 300  # after the first edit that agrees, for others that are as good
SECONDS_OF_PROGRESS = 5.0
MOST_STEPS = 9  # of the search for a number
Progress = Callable[[str], None]


class NeighbourSearch:
    """The edits of a source that agree at a divergence, when its code runs alone."""

    def __init__(
        self,
        source: str,
        port: Path,
        recorded: TraceFile,
        divergence: Divergence,
        deadline: float,
        hints: str = "",
    ):
        self.source, self.deadline, self.runs, self.stopped = source, deadline, 0, False
        events: list[tuple[str, Any]] = []
        with exact():
            self.live = Live(source, port, recorded)
            self.run = PlainRun(self.live.pair, self.live.batches)
            layer = divergence.candidate
            is_layer = not is_forward(divergence) and layer not in ("loss", "optimizer")
            self.run.computed = frozenset([layer] if is_layer else [])
            with LineEvents(str(port), events), self.live.of(source) as side:
                self.before = self.run.wrong(side, events)
        self.arrived = self.run.arrived
        self.first = self._first(divergence)
        self.arrived_first = self.arrived.get(self.first) if self.first else None
        if self.first:
            within = tolerance(self.before[self.first])
            self.run.bounds = {**dict.fromkeys(self.before, math.inf), self.first: within}
        ran = lines_before(events, self.first) if self.first else ()
        near = lines_near(events, self.first) if self.first else frozenset[int]()
        near |= self._lines_of(divergence.candidate.rpartition(".")[2])
        all_lines = range(1, source.count("\n") + 2)
        self.code = Code(source, (*(x for x in ran if x in near), *sorted(near), *ran, *all_lines))
        self.near, self.ran = near, frozenset(ran)
        settings = [
            x
            for entry in recorded.manifest["layers"]
            for x in recorded.module(entry["path"])["settings"].values()
        ]
        self.surroundings = Surroundings(self.code, self.live.defined, hints, tuple(settings))

    def _first(self, divergence: Divergence) -> tuple[str, int] | None:
        """Return the place whose agreement shows that an edit mends; None if only a comparison can."""
        if is_forward(divergence):
            return next(iter(self.before), None)
        key = LOSS if divergence.candidate == "loss" else self.run.result(divergence.candidate)
        return key if key in self.before else None

    def _lines_of(self, name: str) -> frozenset[int]:
        """Return the lines of the statements that bind a name or an attribute of self."""
        lines: set[int] = set()
        for node in ast.walk(ast.parse(self.source)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            every = [t for target in targets for t in (getattr(target, "elts", None) or [target])]
            if isinstance(node, ast.Assign) and any(last_name(target) == name for target in every):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return frozenset(lines)

    def agreeing(
        self, agrees: Callable[[str], bool] | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield edited sources that agree and the number of their batch: one cost, the best first.

        Without a place that a run of the code reaches, `agrees` judges a whole source.
        """
        edits, tried = neighbours(self.surroundings, self.near, self.ran), {self.source}
        batch: list[tuple[int, int, str]] = []
        cost_of_batch, end, reported = 0, 0, time.perf_counter()
        try:
            for number, (cost, texts) in enumerate(edits):
                if batch and (cost != cost_of_batch or self.runs > end):
                    yield from self._ranked(batch)
                    batch = []
                if time.perf_counter() > self.deadline:
                    break
                if progress and time.perf_counter() - reported > SECONDS_OF_PROGRESS:
                    reported = time.perf_counter()
                    progress(f"{number} of {len(edits)} neighbouring sources tried, {len(batch)} agree")
                for wrong, changed in self._tried(texts, tried, agrees):
                    if not batch:
                        cost_of_batch, end = cost, self.runs + MORE_RUNS
                    batch.append((wrong, len(changed), changed))
        except KeyboardInterrupt:
            self.stopped = True
        yield from self._ranked(batch)

    def _ranked(self, batch: list[tuple[int, int, str]]) -> Iterator[tuple[int, str]]:
        yield from ((self.runs, changed) for *_, changed in sorted(batch, key=lambda row: row[:2]))

    def _tried(
        self, texts: Texts, tried: set[str], agrees: Callable[[str], bool] | None
    ) -> Iterator[tuple[int, str]]:
        """Yield an edit's source if it agrees, with the number of other wrong places."""
        try:
            changed = self.code.with_all(texts)
        except (SyntaxError, ValueError):
            return
        if changed in tried:
            return
        tried.add(changed)
        if FACTOR in changed:
            for fitted in self._fitted(changed, texts) if self.first else ():
                if fitted not in tried:
                    tried.add(fitted)
                    wrong = self.wrong(fitted)
                    if wrong is not None:
                        yield len(wrong), fitted
                        return
        elif self.first:
            wrong = self.wrong(changed)
            if wrong is not None:
                yield len(wrong), changed
        elif agrees and agrees(changed):
            yield 0, changed

    def wrong(self, changed: str) -> Wrong | None:
        """Run an edited source; return what is still wrong, or None if the first place is."""
        self.runs += 1
        try:
            quiet = warnings.catch_warnings(action="ignore")
            with limited(SECONDS_OF_RUN), quiet, exact(), self.live.of(changed) as side:
                return self.run.wrong(side) if self.run.fits(side) else None
        except KeyboardInterrupt:
            raise
        except BaseException:
            return None  # the edited code does not run, or does not agree

    # ------------------------------------------------------------------------------------------ a number

    def _fitted(self, changed: str, texts: Texts) -> Iterator[str]:
        """Yield the source with the number that makes torch's array, written as shortly as agrees."""
        (node, text), *_ = texts.items()
        is_number = isinstance(node, ast.Constant) and text == FACTOR
        # Of a term or a factor that is added, this is the number that changes nothing.
        neutral = (1.0 if "*" in text else 0.0 if "+" in text else None) if text.startswith("(") else None
        start = float(node.value) if is_number else neutral
        x = self._root(changed, start)
        for number in written(x) if x is not None else ():
            yield changed.replace(FACTOR, number)

    def _array(self, changed: str, x: float) -> np.ndarray | None:
        wrong = self.wrong(changed.replace(FACTOR, _literal(x)))
        if wrong is not None and self.arrived_first:
            return self.arrived_first.torch
        arrived = self.run.arrived.get(self.first) if self.first else None
        return arrived.flax if arrived else None

    def _root(self, changed: str, start: float | None) -> float | None:
        """Return the number whose array is torch's, by the secant method; None if none is near."""
        if self.arrived_first is None or not np.isfinite(self.arrived_first.torch).all():
            return None
        torch_array, x = self.arrived_first.torch.astype(float), 1.0 if start is None else start
        array = self.arrived_first.flax if start is not None else self._array(changed, x)
        other = x * (1 + 1e-3) or 1e-3
        for step in range(MOST_STEPS):
            after = self._array(changed, other)
            if (
                array is None
                or after is None
                or after.shape != torch_array.shape
                or array.shape != after.shape
            ):
                return None
            if relative_error(after, torch_array) <= EQUAL / 1000:
                return other
            slope = (after - array) / (other - x)
            difference = torch_array - after
            size = float((slope * slope).sum())
            if not size or not math.isfinite(size):
                return None
            move = float((difference * slope).sum()) / size
            remaining = float(np.linalg.norm(difference - move * slope))
            if step == 0 and remaining > 0.7 * float(np.linalg.norm(difference)):
                return None
            if abs(move) <= 1e-9 * abs(other):
                return other + move
            x, other, array = other, other + move, after
        return other


def written(x: float) -> list[str]:
    """Write a number: as the root of an integer if it is one's, and with few digits first."""
    if not x or not math.isfinite(x):
        return []
    roots = [f"({'-' * (x < 0)}{root})" for root in numbers(abs(x))[:-1]]
    short = [float(f"{x:.{digits}g}") for digits in range(1, 13)]
    return [*roots, *dict.fromkeys(_literal(y) for y in short if math.isclose(y, x, rel_tol=1e-4))]


def _literal(x: float) -> str:
    text = f"{x:.17g}" if float(f"{x:.12g}") != x else f"{x:.12g}"
    return f"({text})" if x < 0 else text


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after a time; without a limit outside of the main thread, which gets no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    # Again each second: Python swallows what is raised while it collects an object.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
