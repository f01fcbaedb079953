"""Sum the seconds of nested phases, so that every second counts once, in the innermost phase."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TRACE, LOWER, COMPILE, READ = "trace", "lower", "XLA compiles", "XLA's cache"
START, RANKS, RUN = "JAX starts", "other ranks", "Python, running"
BEFORE, MODULES = "before step 1", "modules, optimizers"


@dataclass
class Counts:
    """How often one function was traced, lowered and compiled from one line, and the seconds of that.

    `compiled` includes programs that XLA's cache held, of which there were `cached`.
    """

    traced: int = 0
    lowered: int = 0
    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0


class Clock:
    """Seconds by part of the run (modules, before the first step, step 1) and by phase; programs by function.

    Only the thread that made the clock is timed, so the seconds add up to those that passed. Programs are
    counted in every thread.

    >>> from jaxpar._tools.startup.clock import Clock
    >>> time = iter([0.0, 1.0, 3.0, 4.0, 8.0])
    >>> clock = Clock(lambda: next(time))
    >>> with clock.phase("import jax"), clock.phase("import numpy"):  # from 1 to 8, and from 3 to 4
    ...     pass
    >>> {phase: seconds for (_, phase), seconds in clock.seconds.items()}
    {'Python, running': 1.0, 'import jax': 6.0, 'import numpy': 1.0}
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now, self._thread, self._phases = now, threading.get_ident(), [RUN]
        self._since = now()
        self.part = BEFORE
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.functions: defaultdict[tuple[str, str], Counts] = defaultdict(Counts)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, phase: str) -> None:
        if threading.get_ident() == self._thread:
            self._sum()
            self._phases.append(phase)

    def leave(self) -> None:
        if threading.get_ident() == self._thread:
            self._sum()
            self._phases.pop()

    def begin(self, part: str) -> None:
        """Count what follows for a different part of the run."""
        self._sum()
        self.part = part

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Count the context, in this clock's thread, for a different part of the run."""
        before, own_thread = self.part, threading.get_ident() == self._thread
        if own_thread:
            self.begin(part)
        try:
            yield
        finally:
            if own_thread:
                self.begin(before)

    def move(self, phase: str, seconds: float) -> None:
        """Count seconds of the innermost phase, which JAX reports afterwards, for a different phase."""
        if threading.get_ident() == self._thread:
            self.seconds[self.part, phase] += seconds
            self.seconds[self.part, self._phases[-1]] -= seconds

    def counts(self, name: str, line: str) -> Counts:
        """Return the counts of a function; `name` may be JAX's name of its program, such as `jit(step)`."""
        match = re.fullmatch(r"\w+\((.*)\)", name)
        return self.functions[match.group(1) if match else name, line]

    def _sum(self) -> None:
        before, self._since = self._since, self._now()
        self.seconds[self.part, self._phases[-1]] += self._since - before
