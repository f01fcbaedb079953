"""A background thread that runs one job at a time and finishes it before the interpreter exits."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, must be imported before `_finish` is registered below
import sys
import threading
import weakref
from collections.abc import Callable

from .._upstream import before_thread_pools_close


class Background:
    """Runs one write job at a time in a thread and stores its error until `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        _all.add(self)

    @property
    def idle(self) -> bool:
        return self._thread is None

    def start(self, job: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(job,), name="jaxpar-checkpointer")
        self._thread.start()

    def wait(self) -> str | None:
        """Wait for the running job, if any, and return the text of its exception once."""
        self.join()
        trouble, self._trouble = self._trouble, None
        return trouble

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()  # a Ctrl-C while joining leaves the job running
            self._thread = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            # The text alone: the exception would keep the arrays of its frames alive until the next save.
            self._trouble = str(error)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _finish() -> None:
    for background in list(_all):
        if trouble := background.wait():
            print(f"jaxpar.Checkpointer: at exit: {trouble}", file=sys.stderr)


# orbax writes with thread pools, which must still work while the last step is finished.
before_thread_pools_close(_finish)
