"""reports: what steps said of their gradients, read when nobody has to wait for it."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

PAUSE = 0.02
"""Seconds between two looks. Reading takes as long as a tenth of a short step."""


class Reports:
    """Trouble stays in every later report until it is forgotten, so any of them will do."""

    def __init__(self) -> None:
        self._first: Any = None  # the oldest that nobody has read
        self._last: Any = None
        self._looked = 0.0

    def add(self, report: jax.Array) -> None:
        self._last = report
        if self._first is None:
            self._first = report

    def read(self, wait: bool) -> tuple[int, int] | None:
        """The gradient that was not finite and the update, or NONE and their number; the last if `wait`."""
        if self._first is None:
            return None
        report = self._last
        if not wait:
            now = time.monotonic()
            if now - self._looked < PAUSE or not self._first.is_ready():
                return None
            self._looked, report = now, self._first
        self._first = None if report is self._last else self._last
        leaf, update = map(int, np.asarray(report))
        return leaf, update

    def clear(self) -> None:
        self._first = self._last = None
