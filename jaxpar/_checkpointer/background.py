"""One job at a time in a thread of its own; the interpreter does not end before it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, it must be there before `_finish` is registered below
import sys
import threading
import weakref
from collections.abc import Callable


class Background:
    """Runs jobs that write. An error is kept until `wait` asks for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        _all.add(self)

    @property
    def idle(self) -> bool:
        """Whether no job runs that has not been waited for."""
        return self._thread is None

    def start(self, job: Callable[[], None]) -> None:
        """Starts a job; `wait` must have been called since the last one."""
        self._thread = threading.Thread(target=self._run, args=(job,), name="jaxpar-checkpointer")
        self._thread.start()

    def wait(self) -> Exception | None:
        """Waits for the job that runs, if one does; returns what it raised, once."""
        self.join()
        error, self._error = self._error, None
        return error

    def join(self) -> None:
        """Waits; what the job raised is kept for `wait`."""
        if self._thread is not None:
            self._thread.join()  # a Ctrl-C here leaves the job running
            self._thread = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._error = error


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _finish() -> None:
    for background in list(_all):
        error = background.wait()
        if error is not None:
            print(f"jaxpar.Checkpointer: at exit: {error}", file=sys.stderr)


# atexit would be too late: a job that has not begun to write could no longer use a pool of threads, since
# concurrent.futures closes them all before atexit runs. This is what concurrent.futures itself uses, and
# the last one to register is the first one to be called.
threading._register_atexit(_finish)  # type: ignore[attr-defined]
