"""Worker threads. Each has a queue of its own, so that every run gives the same batches to the same worker.

Threads, not processes as in torch: reading files, decoding images and NumPy's large operations release
the interpreter lock, nothing has to be pickled, and a process that runs JAX must not be forked. They are
daemons, so that a read that never returns does not keep the process alive.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Initialise = Callable[[int], Any]


class Workers:
    """n threads that live as long as this object is referenced."""

    def __init__(self, n: int, initialise: Initialise | None):
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(n)]
        stopped = threading.Event()
        weakref.finalize(self, _stop, stopped, self._queues)
        for i, tasks in enumerate(self._queues):
            threading.Thread(
                target=_work, args=(i, tasks, stopped, initialise), name=f"DataLoader worker {i}", daemon=True
            ).start()

    def submit(self, number: int, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Lets worker `number` modulo n call the function."""
        future: Future[Any] = Future()
        self._queues[number % len(self._queues)].put((future, function, args))
        return future


def _stop(stopped: threading.Event, queues: list[queue.SimpleQueue[Any]]) -> None:
    stopped.set()
    for tasks in queues:
        tasks.put(None)


def _work(
    worker: int, tasks: queue.SimpleQueue[Any], stopped: threading.Event, initialise: Initialise | None
) -> None:
    failed: BaseException | None = None
    try:
        if initialise is not None:
            initialise(worker)
    except BaseException as error:
        failed = error
        failed.add_note(f"DataLoader: raised by worker_init_fn({worker}).")
    while (task := tasks.get()) is not None and not stopped.is_set():
        future, function, args = task
        if future.set_running_or_notify_cancel():
            try:
                if failed is not None:
                    raise failed
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
        del task, future, function, args  # or a batch would live until the next task comes
