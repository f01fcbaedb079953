"""Worker processes: for data sets written in Python, which threads would run one at a time.

Each worker shares one connection with the loader. Its end shows either side that the other process is gone: a
thread in the loader's process reports a dead worker, its batch and the cause; a thread in the worker ends it
with the loader. Workers ignore Ctrl-C, which reaches every process of a terminal.

Workers are spawned, or forked from a server that was. A process that runs JAX must not be forked itself: the
copy has JAX's locks, but not the threads that would open them, so it waits for ever at its first array.
"""

from __future__ import annotations

import collections
import os
import pickle
import queue
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import _forkserver
from typing import Any

import numpy as np

from .._devices.virtual import hide_accelerators
from ..errors import WorkerError
from ._fetch import Index
from ._worker_info import Job, WorkerInfo, batch_text, numpy_seed, ordinary
from ._worker_messages import Raised, Received, pack, raised, receive

Make = Callable[[int, int, Index], Any]

GRACE = 5.0
"""Seconds that a worker has to finish its batch after the loop has ended, as torch's has."""

STOP = pickle.dumps(None)


class Processes:
    """Processes that live as long as this object is referenced."""

    def __init__(self, job: Job, context: BaseContext):
        # The server that forks workers imports this module once, instead of every worker: seconds each. Only
        # Python's own list is extended: a program may have set another. No effect once the server runs.
        if context.get_start_method() == "forkserver" and _forkserver._preload_modules == ["__main__"]:  # type: ignore[attr-defined]
            context.set_forkserver_preload(["__main__", __name__])
        self._workers: list[_Worker] = []
        # At exit multiprocessing ends them itself, and no thread can be started any more.
        weakref.finalize(self, _stop, self._workers).atexit = False
        self._workers.extend(_Worker(context, job, i) for i in range(job.workers))

    @property
    def broken(self) -> bool:
        return any(worker.death for worker in self._workers)

    def submit(self, worker: int, epoch: int, number: int, index: Index) -> Future[Any]:
        return self._workers[worker].ask(epoch, number, index)


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stop()


# ------------------------------------------------------------------------- in the loader's process


class _Worker:
    """A process and its requested batches, in order. A dedicated thread reads the answers."""

    def __init__(self, context: BaseContext, job: Job, i: int):
        self.i, self.started, self.reported = i, False, False
        self.death: str | None = None  # a raised error would hold the loop, and the loop the workers
        self.asked: collections.deque[tuple[Future[Any], int, Index]] = collections.deque()
        self.lock = threading.Lock()
        self.connection, worker_end = context.Pipe()
        name = f"DataLoader worker {i}"
        self.process = context.Process(target=work, args=(worker_end, job, i), name=name, daemon=True)  # type: ignore[attr-defined]
        with worker_end, _ctrl_c_blocked():
            self._start()
        # `with` closed the worker's end here: otherwise the connection would outlive the worker.
        self.late = threading.Timer(GRACE, self.process.kill)
        self.late.daemon = True
        threading.Thread(target=self._read, name=name, daemon=True).start()

    def _start(self) -> None:
        try:
            self.process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            self.connection.close()
            error.add_note(
                "DataLoader: the data set, collate_fn and worker_init_fn are pickled for worker processes. "
                "Define their classes and functions at the top of a module, or leave multiprocessing_context "
                "out: threads need no copy."
            )
            raise

    def ask(self, epoch: int, number: int, index: Index) -> Future[Any]:
        # Pickle first: an index that cannot be pickled must not leave a future that is never resolved.
        task = pickle.dumps((epoch, number, index))
        future: Future[Any] = Future()
        with self.lock:
            # The lock orders this with the end of _read: it fails this future, or the death is visible here.
            self.asked.append((future, number, index))
            if self.death is not None:
                self._say()
                return future
        with suppress(OSError):  # the worker has died; the reading thread fails all pending futures
            self.connection.send_bytes(task)
        return future

    def stop(self) -> None:
        with suppress(OSError):
            self.connection.send_bytes(STOP)
        with suppress(RuntimeError):  # the interpreter ends, and multiprocessing has ended the worker
            self.late.start()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            # The first message means that the script was imported. An earlier death has a different cause.
            self.started = bool(self.connection.recv_bytes())
            while True:
                answer = receive(self.connection)
                future, *_ = self.asked.popleft()
                if future.set_running_or_notify_cancel():
                    _fulfil(future, answer)
                del answer, future  # or a batch would live until the next one comes
        self.process.join(GRACE)  # a thread that the data set has left may hold it
        self.process.kill()
        self.process.join()
        self.late.cancel()
        self.connection.close()
        with self.lock:
            self.death = self._obituary()
            self._say()

    def _say(self) -> None:
        """Report the death once. Other requests were not started; `Epoch._release` has them resubmitted."""
        while self.asked and not self.reported:
            future, *_ = self.asked.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(WorkerError(self.death))
                self.reported = True

    def _obituary(self) -> str:
        code = self.process.exitcode
        doing = f" while it made {batch_text(*self.asked[0][1:])}" if self.started and self.asked else ""
        who = f"DataLoader worker {self.i} (pid {self.process.pid})"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            description = signal.strsignal(-code) or name
            return f"{who} is killed by signal: {description} ({name}){doing}. {_cure(name)}"
        if not self.started:
            return (
                f"{who} exited unexpectedly with exit code {code}, before it could begin; what it said is "
                "above. A worker process imports the script once more, so what the script does belongs under "
                "`if __name__ == '__main__':`."
            )
        return f"{who} exited unexpectedly with exit code {code}{doing}."


def _fulfil(future: Future[Any], answer: Received) -> None:
    """Resolve the future; a failure to unpickle is its error."""
    try:
        content = answer.unpack()
    except BaseException as error:
        error.add_note("DataLoader: raised while a batch of a worker process was put together again.")
        content = Raised(error, "")
    if isinstance(content, Raised):
        future.set_exception(content.restored())
    else:
        future.set_result(content)


def _cure(name: str) -> str:
    if name == "SIGKILL":
        return (
            "If nobody did that, memory was used up: take fewer workers, smaller batches or a smaller "
            "prefetch_factor."
        )
    return "Native code has crashed: num_workers=0 and `python -X faulthandler` show where."


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT for processes started inside, which Ctrl-C could end before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --------------------------------------------------------------------------- in the worker's process


def work(connection: Connection, job: Job, i: int) -> None:
    # Ignore before unblocking, which discards a Ctrl-C that arrived in the meantime.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Before worker_init_fn and the data set run, which may use JAX: it would take memory of the loader's GPU.
    hide_accelerators()
    tasks: queue.SimpleQueue[tuple[int, int, Index] | None] = queue.SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(connection, tasks, stopped), daemon=True).start()
    connection.send_bytes(b"started")
    info = job.info(i, "multiprocessing")
    _seed(job, info)
    failed = job.begin(info)
    make = _maker(job, failed)
    with suppress(OSError):  # the loader is gone
        # The final None is queued after batches that nothing will read; the event ends the loop before them.
        while (task := tasks.get()) is not None and not stopped.is_set():
            _answer(connection, make, i, *task)


def _listen(connection: Connection, tasks: queue.SimpleQueue[Any], stopped: threading.Event) -> None:
    """Receive tasks; exit the process at once when the loader is gone."""
    try:
        while (task := pickle.loads(connection.recv_bytes())) is not None:
            tasks.put(task)
    except (EOFError, OSError):
        os._exit(1)  # not sys.exit: the main thread may be inside the data set
    stopped.set()
    tasks.put(None)


def _seed(job: Job, info: WorkerInfo) -> None:
    """Seed as torch seeds its workers; seed torch, too, if the data set has imported it."""
    random.seed(info.seed)
    np.random.seed(numpy_seed(job.base_seed, info.id))
    if "torch" in sys.modules:
        from .._upstream.torch_workers import set_torch_worker

        set_torch_worker(info.id, info.num_workers, info.seed, info.dataset)


def _maker(job: Job, failed: BaseException | None) -> Make:
    """Return a function that makes a batch. Each epoch has a new fetcher, so iterables restart."""
    now, fetch = None, None

    def make(epoch: int, number: int, index: Index) -> Any:
        nonlocal now, fetch
        if failed is not None:
            raise failed
        if fetch is None or epoch != now:
            now, fetch = epoch, job.fetcher()
        return fetch(number, index)

    return make


def _answer(connection: Connection, make: Make, i: int, epoch: int, number: int, index: Index) -> None:
    try:
        batch = make(epoch, number, index)
        try:
            answer = pack(batch)
        except Exception as error:
            error.add_note(f"DataLoader: raised while batch {number} was pickled in worker process {i}.")
            raise
    except BaseException as error:
        answer = pack(raised(ordinary(error, i, number, index), i))
    answer.send(connection)
