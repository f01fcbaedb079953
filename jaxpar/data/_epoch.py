"""One pass over the batches, in the caller's thread or with workers that read ahead."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from ._fetch import END, Fetch
from ._workers import Workers


@dataclasses.dataclass
class Position:
    """How far an epoch has come; `start` is the loader's state before its first draw."""

    start: dict[str, Any]
    batches: int = 0
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Reading:
    """How workers read: `hire` gives them, for this epoch alone or for all; `ahead` is how many batches
    they may hold; `timeout` in seconds, 0 for none.
    """

    hire: Callable[[], Workers]
    ahead: int
    timeout: float


@dataclasses.dataclass
class _Task:
    number: int
    index: Any
    future: Future[Any] | None = None


class Epoch:
    """An iterator over batches.

    After an error the next batch follows, as with torch's: whoever catches it can go on. Meanwhile no
    thread is kept, because a traceback that somebody holds would keep them too.
    """

    def __init__(self, fetch: Fetch, index: Iterator[Any], position: Position, reading: Reading | None):
        self._fetch, self._index, self._position, self._reading = fetch, index, position, reading
        self._number = position.batches
        self._todo: collections.deque[_Task] = collections.deque()
        self._workers: Workers | None = None
        self._last = False

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        try:
            number, batch = self._one() if self._reading is None else self._ahead(self._reading)
        except BaseException:
            self._release()
            raise
        if batch is END:
            self._todo.clear()
            self._last = self._position.ended = True
            self._release()
            raise StopIteration
        self._position.batches = number + 1
        return batch

    def _one(self) -> tuple[int, Any]:
        index = END if self._last else next(self._index, END)
        if index is END:
            return self._number, END
        number, self._number = self._number, self._number + 1
        return number, self._fetch(number, index)

    def _ahead(self, reading: Reading) -> tuple[int, Any]:
        self._plan(reading.ahead)
        if not self._todo:
            return self._number, END
        for task in self._todo:
            if task.future is None:
                if self._workers is None:
                    self._workers = reading.hire()
                task.future = self._workers.submit(task.number, self._fetch, task.number, task.index)
        task = self._todo[0]
        assert task.future is not None
        if not wait([task.future], reading.timeout or None).done:
            raise RuntimeError(f"DataLoader timed out after {reading.timeout} seconds")
        self._todo.popleft()
        return task.number, task.future.result()

    def _plan(self, ahead: int) -> None:
        while len(self._todo) < ahead and not self._last:
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
        """Batches that nobody has begun are taken back; workers whom nobody else holds go home."""
        for task in self._todo:
            if task.future is not None and task.future.cancel():
                task.future = None
        self._workers = None

    def __del__(self) -> None:
        self._release()


def hiring(make: Callable[[], Workers], persistent: bool) -> Callable[[], Workers]:
    """Gives workers: others each time, or, if persistent, the same ones as long as they live."""
    if not persistent:
        return make
    kept: list[Workers] = []

    def hire() -> Workers:
        if not kept:
            kept.append(make())
        return kept[0]

    return hire
