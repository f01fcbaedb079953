"""prefetch: copy the next batches to the devices during the current step.

A thread reads and sends batches, and never launches a multi-device program, so it can run next to the
training thread, also on virtual devices. It has no reference to the loop's iterator, and ends with the loop.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from .._arguments import Positive
from .._parallel.placement import Placement
from .._typing import DeviceLike, PyTree
from ._fetch import END
from .sending import Send, sender

Reader = Callable[[], PyTree] | None
"""Returns the position in an iterable; None if it cannot be saved."""


def prefetch(
    iterable: Iterable[PyTree],
    placement: Placement | Iterable[DeviceLike] | DeviceLike | None = None,
    size: Positive = 2,
) -> Prefetch:
    """Iterate over the same batches, copied to the devices ahead of time.

    Args:
      iterable: a `DataLoader`, torch's or this one, a grain data set, anything that yields pytrees of arrays.
        Other leaves stay as they are, and what `jaxpar.replicated` marks goes to all devices.
      placement: a `Placement` or devices: rows that divide evenly are spread over them, others go to all of
        them; or one device, which gets everything; all devices if left out.
      size: how many batches may wait at most, including the one being made.

    Returns: An iterable of `jax.Array` trees; each loop over it is a pass over `iterable`. `with` and
      `close()` end the thread. `len` and the state are those of `iterable`, at the last batch that was
      returned, not read.

    Raises: ValueError: `size` is not a positive int. DeviceError: unknown devices. TypeError: not an
      iterable. LeafError: arrays of text or objects. RangeError: integers that JAX would wrap. Errors of
      `iterable`, after the preceding batches, with a note of the batch's number.

    torch counterpart: `DataLoader(pin_memory=True)` and `.to(device, non_blocking=True)`.

    >>> from jaxpar import data
    >>> loader = data.DataLoader([1, 2, 3], batch_size=2)
    >>> [len(batch) for batch in data.prefetch(loader)]
    [2, 1]
    """
    return Prefetch(iterable, sender(placement), size)


class Prefetch:
    """The iterable that `prefetch` returns."""

    def __init__(self, iterable: Iterable[PyTree], send: Send, size: int):
        self._iterable, self._send, self._size = iterable, send, size
        self._passes: weakref.WeakSet[_PrefetchIterator] = weakref.WeakSet()
        self._position: list[Any] = []  # of the last batch that was returned
        self._resume: PyTree = None

    def __iter__(self) -> Iterator[PyTree]:
        rows = iter(self._iterable)
        if self._resume is not None:
            rows.set_state(self._resume)  # type: ignore[attr-defined]
        read = _reader(self._iterable, rows)
        self._resume, self._position = None, [None if read is None else read()]
        one = _PrefetchIterator(_Channel(self._size), rows, self._send, read, self._position)
        # Weak: a loop that is left drops its iterator, which ends its thread.
        self._passes.add(one)
        return one

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end(wait=kind is None)  # an error should not wait for a slow read

    def close(self) -> None:
        """End the thread after its current batch, and wait for the thread. Active loops end, too."""
        self._end(wait=True)

    def _end(self, wait: bool) -> None:
        for one in list(self._passes):
            one.channel.end(wait)

    def state_dict(self) -> PyTree:
        """Return the iterable's position at the last batch that was returned; TypeError if it has none."""
        if self._position:
            position = self._position[0]
        else:
            read = _reader(self._iterable, None)
            position = None if read is None else read()
        if position is None:
            raise TypeError(
                f"prefetch: the place in a {type(self._iterable).__name__} cannot be saved, since it has "
                "neither state_dict nor an iterator with get_state (before the first batch, state_dict only)."
            )
        return position

    def load_state_dict(self, state: PyTree) -> None:
        """Continue the next loop after the batch at which `state_dict` was called."""
        self._position = [state]
        if hasattr(self._iterable, "load_state_dict"):
            self._iterable.load_state_dict(state)
        else:
            self._resume = state


def _reader(iterable: object, rows: object) -> Reader:
    for source, method in ((rows, "get_state"), (iterable, "state_dict")):
        if hasattr(source, method):
            return getattr(source, method)
    return None


class _Channel:
    """State shared by the thread and the loop, which keeps neither iterator nor data alive."""

    def __init__(self, size: int):
        # SimpleQueue, because Queue does not allow `end` to run in a finalizer in the middle of a `put`.
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.room = threading.Semaphore(size)
        self.ended = False
        self.thread: threading.Thread | None = None

    def end(self, wait: bool = False) -> None:
        """Stop reading, and drop the batches that are ready."""
        self.ended = True
        self.room.release()  # wakes a thread that waits for room, so that it sees the end
        while not self.ready.empty():
            self.ready.get()
        self.ready.put((END, None))
        # The thread cannot wait for its own end, should the iterable call `close`.
        if wait and self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()


_channels: weakref.WeakSet[_Channel] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all threads before JAX shuts down its backends at exit, when no copy may be in progress."""
    # atexit runs the last registered function first, and this module is imported after JAX.
    for channel in list(_channels):
        channel.end()
        if channel.thread is not None:
            channel.thread.join(timeout=5)


class _PrefetchIterator:
    def __init__(
        self, channel: _Channel, rows: Iterator[PyTree], send: Send, read: Reader, position: list[Any]
    ):
        self.channel, self._position = channel, position
        self._error: BaseException | None = None
        # When the loop drops its iterator, the thread ends. At exit `_end_all` does it, in the right order.
        weakref.finalize(self, channel.end).atexit = False
        # `with jax.enable_x64(...)` holds for the caller's thread alone.
        x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        channel.thread = threading.Thread(
            target=_read_and_send, args=(channel, rows, send, read, x64), name="prefetch", daemon=True
        )
        _channels.add(channel)
        channel.thread.start()

    def __iter__(self) -> _PrefetchIterator:
        return self

    def __next__(self) -> PyTree:
        if self._error is not None:
            raise self._error
        if self.channel.ended:
            raise StopIteration
        try:
            batch, position = self.channel.ready.get()
        except BaseException:  # Ctrl-C: its traceback keeps this iterator alive, and so would the thread be
            self.channel.end()
            raise
        if batch is END:
            self.channel.end()
            if position is None:
                raise StopIteration
            # Kept, so that a second next() does not look like the end of the data.
            self._error = position
            raise position
        self.channel.room.release()
        self._position[:] = [position]
        return batch


def _read_and_send(channel: _Channel, rows: Iterator[PyTree], send: Send, read: Reader, x64: bool) -> None:
    last: BaseException | None = None
    try:
        for number in itertools.count():
            channel.room.acquire()
            if channel.ended:
                return
            what = "read"
            try:
                batch = next(rows, END)
                if batch is END:
                    break
                position = None if read is None else read()
                what = "sent to the devices"
                with jax.enable_x64(x64):
                    batch = send(batch)
            except BaseException as error:
                error.add_note(f"prefetch: raised while batch {number} was {what}.")
                last = error
                break
            if channel.ended:
                return
            # The position travels with its batch, so that state_dict never runs ahead of the loop.
            channel.ready.put((batch, position))
            del batch  # else one more batch than `size` would be alive while the next is read
    finally:
        channel.ready.put((END, last))
        del last  # its traceback refers to this frame, which would refer to it
