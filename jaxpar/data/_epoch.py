"""Epoch: one pass over the batches, in the caller's thread or with workers that read ahead."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from ._fetch import END, Batch, Fetch, Index
from ._workers import Workers


@dataclasses.dataclass
class Position:
    """How far an epoch has come; `start` is the loader's state before the epoch's first draw.

    `promised` is what `len(loader)` told somebody of an iterable, which may give more.
    """

    start: dict[str, Any]
    batches: int = 0
    ended: bool = False
    promised: int | None = None


@dataclasses.dataclass(frozen=True)
class ReadAhead:
    """Where workers come from, how many batches they may hold, and how many seconds to wait (0: no limit)."""

    workers: Callable[[], Workers]
    batches: int
    timeout: float


@dataclasses.dataclass
class _Task:
    number: int
    index: Index
    future: Future[Any] | None = None


class Epoch:
    """An iterator over batches.

    After an error the next batch follows, as with torch's: whoever catches it can go on. Until then no
    thread is kept alive, because a stored traceback would keep the threads, too.
    """

    def __init__(
        self, fetch: Fetch, index: Iterator[Index], position: Position, read_ahead: ReadAhead | None
    ):
        self._fetch, self._index, self._position, self._read_ahead = fetch, index, position, read_ahead
        self._number = position.batches
        self._todo: collections.deque[_Task] = collections.deque()
        self._workers: Workers | None = None
        self._last = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        try:
            number, batch = self._read() if self._read_ahead is None else self._next_of(self._read_ahead)
        except BaseException:
            self._release()
            raise
        if batch is END:
            self._todo.clear()
            self._last = self._position.ended = True
            self._release()
            raise StopIteration
        self._position.batches = number + 1
        if number == self._position.promised:
            warnings.warn(
                f"DataLoader: the iterable data set is longer than it said: len(loader) was {number}, and "
                f"batch {number} has been read. Whatever asked for the length is wrong; correct __len__.",
                stacklevel=2,
            )
        return batch

    def _read(self) -> tuple[int, Batch]:
        index = END if self._last else next(self._index, END)
        if index is END:
            return self._number, END
        number, self._number = self._number, self._number + 1
        return number, self._fetch(number, index)

    def _next_of(self, ahead: ReadAhead) -> tuple[int, Batch]:
        self._plan(ahead.batches)
        if not self._todo:
            return self._number, END
        for task in self._todo:
            if task.future is None:
                if self._workers is None:
                    self._workers = ahead.workers()
                task.future = self._workers.submit(task.number, self._fetch, task.number, task.index)
        task = self._todo[0]
        assert task.future is not None
        if not wait([task.future], ahead.timeout or None).done:
            raise RuntimeError(f"DataLoader timed out after {ahead.timeout} seconds")
        self._todo.popleft()
        return task.number, task.future.result()

    def _plan(self, batches: int) -> None:
        """Decides on the rows of as many batches as may be read ahead; draws are made here, in order."""
        while len(self._todo) < batches and not self._last:
            task = _Task(self._number, END)
            try:
                task.index = next(self._index, END)
            except Exception as error:  # the batches before it come first
                task.future = Future()
                task.future.set_exception(error)
            if task.index is END:
                self._last = True
                if task.future is None:
                    return
            self._todo.append(task)
            self._number += 1

    def _release(self) -> None:
        """Takes back the batches that no worker has started, and lets go of the workers."""
        for task in self._todo:
            if task.future is not None and task.future.cancel():
                task.future = None
        self._workers = None

    def __del__(self) -> None:
        self._release()


def worker_source(make: Callable[[], Workers], persistent: bool) -> Callable[[], Workers]:
    """Where an epoch gets its workers: new ones each time, or the same ones if persistent."""
    if not persistent:
        return make
    kept: list[Workers] = []

    def workers() -> Workers:
        if not kept:
            kept.append(make())
        return kept[0]

    return workers
