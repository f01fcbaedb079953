"""call_lock: one call of a step at a time, whatever the number of threads."""

from __future__ import annotations

import threading


class CallLock:
    """A lock that its thread may take again. A copy of the owner gets one of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[CallLock], tuple[()]]:
        return CallLock, ()
