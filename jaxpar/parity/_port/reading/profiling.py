"""Profiling: pass every call and return of this thread to a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Note = Callable[[Any, str, Any], None]  # A function for `sys.setprofile`: frame, event, argument


@contextmanager
def profiled(note: Note) -> Iterator[None]:
    """Pass events to `note`; a profiler that was active resumes afterwards."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        # cProfile's profiler is not a function that sys.setprofile accepts.
        resume = getattr(before, "enable", functools.partial(sys.setprofile, before))
        resume()
