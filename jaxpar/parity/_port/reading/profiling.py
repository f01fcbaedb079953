"""Profiling: every call and return inside, seen by a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Note = Callable[[Any, str, Any], None]
"""Of `sys.setprofile`: a frame, what happened, and with what."""


@contextmanager
def profiled(note: Note) -> Iterator[None]:
    """`note` sees what this thread runs inside; a profiler that is at work goes on afterwards."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        # cProfile's is no function that could be set.
        goes_on = getattr(before, "enable", functools.partial(sys.setprofile, before))
        goes_on()
