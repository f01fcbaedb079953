"""One job at a time in a thread of its own; the interpreter does not end before it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, it must be there before `_finish` is registered below
import sys
import threading
import weakref
from collections.abc import Callable

from .._upstream import before_thread_pools_close


class Background:
    """Runs jobs that write. What went wrong is kept until `wait` asks for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        _all.add(self)

    @property
    def idle(self) -> bool:
        """Whether no job runs that has not been waited for."""
        return self._thread is None

    def start(self, job: Callable[[], None]) -> None:
        """Starts a job; `wait` must have been called since the last one."""
        self._thread = threading.Thread(target=self._run, args=(job,), name="jaxpar-checkpointer")
        self._thread.start()

    def wait(self) -> str | None:
        """Waits for the job that runs, if one does; returns the text of what it raised, once."""
        self.join()
        trouble, self._trouble = self._trouble, None
        return trouble

    def join(self) -> None:
        """Waits; what the job raised is kept for `wait`."""
        if self._thread is not None:
            self._thread.join()  # a Ctrl-C here leaves the job running
            self._thread = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._trouble = str(error)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _finish() -> None:
    for background in list(_all):
        if trouble := background.wait():
            print(f"jaxpar.Checkpointer: at exit: {trouble}", file=sys.stderr)


before_thread_pools_close(_finish)  # orbax writes with pools of threads
