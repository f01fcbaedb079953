"""Ctrl-C between two steps instead of anywhere, such as in an import that swallows exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Remember:
    """A handler of SIGINT: the first signal is stored until `check`, the second raises at once."""

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # The step that `check` waits for may never end.
        if self.interrupted:
            signal.default_int_handler(number, frame)
        self.interrupted = True

    def check(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt after a Ctrl-C; a second Ctrl-C raises at once."""
    # Python lets only the main thread set signal handlers, and runs them only there.
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if in_main_thread and isinstance(before, _Remember):
        # A nested loop shares the outer one's handler, so that both end.
        yield before.check
        return
    # SIGINT may be ignored on purpose (a script's background job), and the user's own handler comes first.
    if not in_main_thread or before is not signal.default_int_handler:
        yield lambda: None
        return
    remember = _Remember()
    signal.signal(signal.SIGINT, remember)
    try:
        yield remember.check
        remember.check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
