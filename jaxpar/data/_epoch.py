"""Epoch: one pass over the batches, in the caller's thread or with workers that read ahead."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Protocol

from .._arguments import warn
from ._fetch import END, Batch, Index


@dataclasses.dataclass
class Position:
    """An epoch's position, from `start`, the loader's state before the epoch's first draw.

    `promised` is the result of `len(loader)` for an iterable, which may yield more.
    """

    start: dict[str, Any]
    batches: int = 0
    ended: bool = False
    promised: int | None = None


class Workers(Protocol):
    """Worker threads or processes; they end with the last reference to this object."""

    @property
    def broken(self) -> bool: ...

    def submit(self, worker: int, fetch: Any, number: int, index: Index) -> Future[Any]: ...


@dataclasses.dataclass(frozen=True)
class ReadAhead:
    """How an epoch's workers read ahead: `count` workers, `batches` batches, waiting `timeout` seconds.

    `copies`: whether each worker has a copy of the data set and outlives an error, as processes do;
    `stateful`: whether its position in the data set ends with it.
    """

    workers: Callable[[], Workers]
    count: int
    batches: int
    timeout: float
    copies: bool = False
    stateful: bool = False


@dataclasses.dataclass
class _Task:
    number: int
    worker: int
    index: Index
    future: Future[Any] | None = None


class Epoch:
    """An iterator over batches. After an error the next batch follows, as in torch, so a caller can go on."""

    def __init__(self, fetch: Any, index: Iterator[Index], position: Position, read_ahead: ReadAhead | None):
        self._fetch, self._index, self._position, self._read_ahead = fetch, index, position, read_ahead
        self._number = position.batches
        self._todo: collections.deque[_Task] = collections.deque()
        self._workers: Workers | None = None
        self._turns = collections.deque(range(read_ahead.count if read_ahead else 0))
        # A resumed epoch continues with the worker whose turn it was.
        self._turns.rotate(-self._number)
        self._begun = self._last = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        try:
            batch = self._read() if self._read_ahead is None else self._next_of(self._read_ahead)
        except BaseException as error:
            # A stored traceback refers to this frame, and would keep the worker threads alive.
            if not self._outlives(error):
                self._release()
            raise
        if batch is END:
            self._todo.clear()
            self._last = self._position.ended = True
            self._release()
            raise StopIteration
        self._position.batches += 1
        # Warn once, at the first batch beyond the promised length.
        if self._position.batches - 1 == self._position.promised:
            self._warn_of_length(self._position.promised)
        return batch

    def _warn_of_length(self, promised: int) -> None:
        several = self._read_ahead is not None and self._read_ahead.stateful
        share = " Or each worker reads all of it: take a share by get_worker_info." if several else ""
        warn(
            f"DataLoader: the iterable data set is longer than it said: len(loader) was {promised}, and "
            f"batch {promised} has been read. Whatever asked for the length is wrong; correct "
            f"__len__.{share}"
        )

    def _read(self) -> Batch:
        index = END if self._last else next(self._index, END)
        if index is END:
            return END
        number, self._number = self._number, self._number + 1
        return self._fetch(number, index)

    def _next_of(self, ahead: ReadAhead) -> Batch:
        while True:
            self._plan(ahead.batches)
            if not self._todo:
                return END
            self._submit(ahead)
            task = self._todo[0]
            assert task.future is not None
            if not wait([task.future], ahead.timeout or None).done:
                raise RuntimeError(f"DataLoader timed out after {ahead.timeout} seconds")
            # Only after the wait: a batch that timed out stays first, and the next call waits again.
            self._todo.popleft()
            batch = task.future.result()
            if batch is not END:
                return batch
            self._retire(task.worker)

    def _plan(self, batches: int) -> None:
        """Choose the rows of the batches that may be read ahead; random draws happen here, in order."""
        while len(self._todo) < batches and self._turns and not self._last:
            task = _Task(self._number, self._turns[0], END)
            try:
                task.index = next(self._index, END)
            except Exception as error:  # raised after the earlier batches
                task.future = Future()
                task.future.set_exception(error)
            if task.index is END:
                self._last = True
                if task.future is None:
                    return
            self._todo.append(task)
            self._number += 1
            self._turns.rotate(-1)

    def _submit(self, ahead: ReadAhead) -> None:
        for task in self._todo:
            if task.future is None:
                if self._workers is None:
                    if self._begun and ahead.stateful:
                        raise RuntimeError(
                            "DataLoader: the worker processes of this epoch have ended, and with them their "
                            "places in the iterable data set. Begin an epoch."
                        )
                    # At the first batch, because an epoch that is never iterated should start none.
                    self._workers, self._begun = ahead.workers(), True
                task.future = self._workers.submit(task.worker, self._fetch, task.number, task.index)

    def _retire(self, worker: int) -> None:
        """Remove a worker whose iterable has ended; the others continue in turn, as in torch."""
        self._turns.remove(worker)
        self._todo = collections.deque(task for task in self._todo if task.worker != worker)

    def _outlives(self, error: BaseException) -> bool:
        """Return whether the workers survive an error: processes start slowly and know their position."""
        if self._workers is None or self._workers.broken or not isinstance(error, Exception):
            return False
        return self._read_ahead is not None and self._read_ahead.copies

    def _release(self) -> None:
        """Cancel the batches that no worker has started, and release the workers."""
        for task in self._todo:
            # A cancelled task is submitted again if the caller continues after the error. A running one keeps
            # its future, so that its rows are not read twice.
            if task.future is not None and task.future.cancel():
                task.future = None
        self._workers = None

    def __del__(self) -> None:
        self._release()


def reused(make: Callable[[], Workers]) -> Callable[[], Workers]:
    those: list[Workers] = []

    def workers() -> Workers:
        if not those or those[0].broken:
            those[:] = [make()]
        return those[0]

    return workers
