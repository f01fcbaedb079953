"""Ctrl-C between two steps instead of anywhere.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a compiler's callback or an
import that swallows exceptions it turns into another error, is lost, or ends the process in native code. A
comparison asks between two steps instead.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Remember:
    """A handler of SIGINT: the first is kept until `check`, the second raises at once."""

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
    """Gives a function that raises KeyboardInterrupt if Ctrl-C came since.

    Inside a loop that keeps Ctrl-C in the same way (`jaxpar.progress`, a handler with `check`) it asks that
    one, so that both end. Outside the main thread, and where SIGINT is ignored or has another handler,
    nothing is changed.
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
