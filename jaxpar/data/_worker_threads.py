"""Worker threads. Each has its own queue, so that every run assigns the same batches to the same worker.

They are the default: reading files, decoding images and NumPy's large operations release the lock.
"""

from __future__ import annotations

import queue
import threading
import weakref
from concurrent.futures import Future
from typing import Any

from ._fetch import Fetch, Index
from ._worker_info import Job, WorkerInfo, ordinary


class Threads:
    """Threads that live as long as this object is referenced, one for each of `infos`."""

    broken = False

    def __init__(self, job: Job, infos: list[WorkerInfo]):
        # SimpleQueue, because Queue does not allow _stop to run in a finalizer in the middle of a `put`.
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in infos]
        stopped = threading.Event()
        # The finalizer must not reference self, so it gets the queues alone.
        weakref.finalize(self, _stop, stopped, self._queues)
        for info, tasks in zip(infos, self._queues, strict=True):
            threading.Thread(
                target=_work,
                args=(job, info, tasks, stopped),
                name=f"DataLoader worker {info.id}",
                daemon=True,
            ).start()

    def submit(self, worker: int, fetch: Fetch, number: int, index: Index) -> Future[Any]:
        future: Future[Any] = Future()
        self._queues[worker].put((future, fetch, number, index))
        return future


def _stop(stopped: threading.Event, queues: list[queue.SimpleQueue[Any]]) -> None:
    stopped.set()
    for tasks in queues:
        tasks.put(None)


def _work(job: Job, info: WorkerInfo, tasks: queue.SimpleQueue[Any], stopped: threading.Event) -> None:
    failed = job.begin(info)
    while (task := tasks.get()) is not None and not stopped.is_set():
        future, fetch, number, index = task
        if future.set_running_or_notify_cancel():
            try:
                if failed is not None:
                    raise failed
                future.set_result(fetch(number, index))
            except BaseException as error:
                future.set_exception(ordinary(error, info.id, number, index))
        del task, future, fetch  # or a batch would live until the next task comes
