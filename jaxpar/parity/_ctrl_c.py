"""Defer Ctrl-C to the end of a step.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a compiler's callback, or an
import that swallows exceptions, it turns into a different error, is lost, or ends the process in native code.
A comparison checks for it between two steps instead.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Remember:
    """A SIGINT handler: defers the first signal until `check`, and raises at the second."""

    pending = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            signal.default_int_handler(number, frame)
        self.pending = True

    def check(self) -> None:
        if self.pending:
            raise KeyboardInterrupt


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C was pressed in the meantime.

    Inside an outer loop that defers Ctrl-C (`jaxpar.progress`: any handler with `check`), it is the outer
    handler's function, so that both loops end. Changes nothing outside the main thread, or if SIGINT is
    ignored or has a custom handler.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not in_main_thread or before is not signal.default_int_handler:
        yield getattr(before, "check", lambda: None) if in_main_thread else lambda: None
        return
    remember = _Remember()
    signal.signal(signal.SIGINT, remember)
    try:
        yield remember.check
        remember.check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
