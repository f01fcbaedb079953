"""reports: what steps said of their gradients, read when nobody has to wait for it."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

PAUSE = 0.02
"""Seconds between two looks. Reading takes as long as a tenth of a short step."""
LAG = 8
"""In updates: how old a report is when it is read, where several processes have to read the same one."""


class Reports:
    """Trouble stays in every later report until it is forgotten, so any of them will do.

    Processes that train together have to find it in the same call: one that raised earlier, and went on
    with another batch, would move while the others still stand. So there the number of updates says when
    to look; a process alone looks when a report is there.
    """

    def __init__(self, together: bool) -> None:
        self._together = together
        self._first: Any = None  # the oldest that nobody has read
        self._last: Any = None
        self._age, self._looked = 0, 0.0

    def add(self, report: jax.Array) -> None:
        self._last = report
        self._age += 1
        if self._first is None:
            self._first, self._age = report, 0

    def read(self, wait: bool) -> tuple[int, int] | None:
        """The gradient that was not finite and the update, or NONE and their number; the last if `wait`."""
        if self._first is None or not (wait or self._is_due()):
            return None
        report = self._last if wait else self._first
        self._first, self._age = None if report is self._last else self._last, 0
        leaf, update = map(int, np.asarray(report))
        return leaf, update

    def _is_due(self) -> bool:
        if self._together:
            return self._age >= LAG
        now = time.monotonic()
        if now - self._looked < PAUSE or not self._first.is_ready():
            return False
        self._looked = now
        return True

    def clear(self) -> None:
        self._first = self._last = None
