"""Ctrl-C between two steps instead of anywhere.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a compiler's callback or
an import that swallows exceptions it turns into another error, is lost, or ends the process in native
code. A loop of steps asks here instead: the step is completed, then the loop ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt if Ctrl-C came since; a second Ctrl-C raises at once.

    It changes nothing outside the main thread, and where SIGINT is ignored or has a handler of its own.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    asked = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(number, frame)
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, remember)
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
