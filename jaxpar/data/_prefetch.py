"""prefetch: the next batches are copied to the devices while these compute the present one.

A thread takes batches of any iterable and sends them. It makes copies only and launches no program for
several devices, so it can run beside the thread that trains, on virtual devices too (`_devices.virtual`). It
ends with the loop, however that ends: the thread holds nothing that keeps the loop's iterator alive.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from .._parallel.placement import Placement
from .._typing import DeviceLike, PyTree
from ._fetch import END
from .sending import Send, sender


def prefetch(
    iterable: Iterable[PyTree],
    placement: Placement | Iterable[DeviceLike] | DeviceLike | None = None,
    size: int = 2,
) -> Prefetch:
    """The same batches, each on the devices before it is asked for.

    Args:
      iterable: a `DataLoader`, torch's or this one, a grain data set, anything that gives pytrees of
        arrays. Other leaves stay as they are.
      placement: a `Placement` or devices, over which rows are spread that divide evenly (others go to
        all of them); one device, which gets everything; all devices if left out.
      size: how many batches may wait at most, the one that is being made included.

    Returns:
      An iterable of `jax.Array` trees; each loop over it is a pass over `iterable`. `with` and `close()`
      end the thread. `len`, `state_dict` and `load_state_dict` are those of `iterable`, whose place is
      the last batch that was given out, not the last that was read.

    Raises:
      ValueError: `size` is no positive int. DeviceError: unknown devices. TypeError: not an iterable.
      What `iterable` raises, after the batches before it and with a note that numbers the batch.
      LeafError: arrays of text or objects. RangeError: integers that JAX would wrap.

    torch counterpart: `DataLoader(pin_memory=True)` and `.to(device, non_blocking=True)`.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"prefetch: size must be a positive int, not {size!r}.")
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        raise TypeError(f"prefetch: {type(iterable).__name__} is not iterable.")
    return Prefetch(iterable, sender(placement), size)


class Prefetch:
    """What `prefetch` returns."""

    def __init__(self, iterable: Iterable[PyTree], send: Send, size: int):
        self._iterable, self._sender, self._size = iterable, send, size
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._place: list[Any] = []  # of the last batch that was given out
        self._resume: Any = None

    def __iter__(self) -> Iterator[PyTree]:
        rows = iter(self._iterable)
        if self._resume is not None:
            rows.set_state(self._resume)  # type: ignore[attr-defined]
        read = _reader(self._iterable, rows)
        self._resume, self._place = None, [None if read is None else read()]
        one = _Pass(_Feed(self._size), rows, self._sender, read, self._place)
        self._passes.add(one)
        return one

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._end(wait=kind is None)

    def close(self) -> None:
        """Ends the thread, and waits for the batch that it is reading; loops over this end, too."""
        self._end(wait=True)

    def _end(self, wait: bool) -> None:
        for one in list(self._passes):
            one.feed.end(wait)

    def state_dict(self) -> Any:
        """The iterable's place at the last batch that was given out.

        Raises:
          TypeError: it has neither `state_dict` nor its iterator `get_state`.
        """
        if self._place:
            place = self._place[0]
        else:
            read = _reader(self._iterable, None)
            place = None if read is None else read()
        if place is None:
            raise TypeError(
                f"prefetch: the place in a {type(self._iterable).__name__} cannot be saved, since it has "
                "neither state_dict nor an iterator with get_state (before the first batch, state_dict only)."
            )
        return place

    def load_state_dict(self, state: Any) -> None:
        """The next loop goes on behind the batch at which `state_dict` was called."""
        self._place = [state]
        if hasattr(self._iterable, "load_state_dict"):
            self._iterable.load_state_dict(state)
        else:
            self._resume = state


def _reader(iterable: Any, rows: Any) -> Any:
    """The function that says where the iterable is: torchdata's word or grain's."""
    for source, word in ((rows, "get_state"), (iterable, "state_dict")):
        if hasattr(source, word):
            return getattr(source, word)
    return None


class _Feed:
    """What the thread and the loop share."""

    def __init__(self, size: int):
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.room = threading.Semaphore(size)
        self.ended = False
        self.thread: threading.Thread | None = None

    def end(self, wait: bool = False) -> None:
        """Nothing is read any more, and what is ready is dropped."""
        self.ended = True
        self.room.release()
        while not self.ready.empty():
            self.ready.get()
        self.ready.put((END, None))
        if wait and self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()


_feeds: weakref.WeakSet[_Feed] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """JAX takes its backends down at the end of the process; no copy may be under way then.

    This runs before, because it was registered after JAX was imported.
    """
    for feed in list(_feeds):
        feed.end()
        if feed.thread is not None:
            feed.thread.join(timeout=5)


class _Pass:
    """One loop's iterator."""

    def __init__(self, feed: _Feed, rows: Iterator[PyTree], send: Send, read: Any, place: list[Any]):
        self.feed, self._place = feed, place
        self._error: BaseException | None = None
        weakref.finalize(self, feed.end).atexit = False
        # A `with` may have set it for the caller's thread alone.
        x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        feed.thread = threading.Thread(
            target=_run, args=(feed, rows, send, read, x64), name="prefetch", daemon=True
        )
        _feeds.add(feed)
        feed.thread.start()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> PyTree:
        if self._error is not None:
            raise self._error
        if self.feed.ended:
            raise StopIteration
        try:
            batch, place = self.feed.ready.get()
        except BaseException:  # Ctrl-C: its traceback would keep this iterator, and so the thread
            self.feed.end()
            raise
        if batch is END:
            self.feed.end()
            if place is None:
                raise StopIteration
            self._error = place
            raise place
        self.feed.room.release()
        self._place[:] = [place]
        return batch


def _run(feed: _Feed, rows: Iterator[PyTree], send: Send, read: Any, x64: bool) -> None:
    last: BaseException | None = None
    try:
        for number in itertools.count():
            feed.room.acquire()
            if feed.ended:
                return
            what = "read"
            try:
                batch = next(rows, END)
                if batch is END:
                    break
                place = None if read is None else read()
                what = "sent to the devices"
                with jax.enable_x64(x64):
                    batch = send(batch)
            except BaseException as error:
                error.add_note(f"prefetch: raised while batch {number} was {what}.")
                last = error
                break
            if feed.ended:
                return
            feed.ready.put((batch, place))
            del batch
    finally:
        feed.ready.put((END, last))
        del last
