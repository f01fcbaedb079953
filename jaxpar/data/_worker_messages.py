"""Messages from worker processes: arrays through shared memory, everything else through the connection.

Pickle's protocol 5 passes the arrays' memory out of band. It is written once, into a file in memory without a
name (memfd), whose descriptor travels over the connection: nothing is copied by the reader, nothing is left
when a process dies, and /dev/shm may be small. Small batches go through the connection itself.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pickle
import traceback
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

SMALL = 2**20
"""Bytes of arrays, below which a file costs more than it saves (`benchmarks/data.py processes`)."""

MAPPED = 64
"""Batches that may be mapped at a time. Python keeps a descriptor for each map; batches beyond are copied."""

ALIGNMENT = 64

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class WorkerTraceback(Exception):
    """The cause of a worker process's error: its traceback there, as text."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True)
class Raised:
    """A pickled error, and the text of its traceback, which cannot be pickled."""

    error: BaseException
    text: str

    def restored(self) -> BaseException:
        self.error.__cause__ = WorkerTraceback(self.text)
        return self.error


def raised(error: BaseException, worker: int) -> Raised:
    """Wrap an error for pickling; as RuntimeError, if it cannot be pickled and restored."""
    text = "".join(traceback.format_exception(error))
    text = f"Caught {type(error).__name__} in DataLoader worker process {worker}.\nOriginal {text}"
    try:
        # Many exceptions pickle but fail to restore, or lose their message.
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return Raised(error, text)
    except Exception:  # whatever pickle and the error's own class raise
        pass
    other = RuntimeError(f"{type(error).__name__}: {error}")
    # The notes name the row and the batch.
    for note in getattr(error, "__notes__", ()):
        other.add_note(note)
    return Raised(other, text)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A pickled object, ready to be sent; the memory of its arrays is in `file`, or else in `buffers`."""

    head: bytes
    buffers: Sequence[memoryview]
    file: int | None

    def send(self, connection: Connection) -> None:
        """Send the message, once; OSError if the receiver is gone."""
        sizes = [len(buffer) for buffer in self.buffers]
        connection.send_bytes(pickle.dumps((self.head, sizes, self.file is not None)))
        if self.file is None:
            for buffer in self.buffers:
                connection.send_bytes(buffer)
            return
        try:
            reduction.send_handle(connection, self.file, None)
        finally:
            # The message holds a duplicate of the descriptor, and the memory is freed with the last one.
            os.close(self.file)


def pack(content: Any) -> Packed:
    """Pickle an object, with its arrays in shared memory; OSError if none is left."""
    pickled: list[pickle.PickleBuffer] = []
    head = pickle.dumps(content, protocol=5, buffer_callback=pickled.append)
    buffers = [buffer.raw() for buffer in pickled]
    if sum(map(len, buffers)) < SMALL or not hasattr(os, "memfd_create"):
        return Packed(head, buffers, None)
    file = os.memfd_create("jaxpar-batch")
    try:
        for offset, buffer in zip(_offsets([len(b) for b in buffers]), buffers, strict=True):
            _write(file, buffer, offset)
    except BaseException:
        os.close(file)
        raise
    return Packed(head, buffers, file)


def _write(file: int, buffer: memoryview, offset: int) -> None:
    # Through a map, running out of memory would be a SIGBUS; and pages would be cleared first.
    while len(buffer):
        n = os.pwrite(file, buffer, offset)
        buffer, offset = buffer[n:], offset + n


@dataclasses.dataclass(frozen=True)
class Received:
    head: bytes
    buffers: Sequence[Any]

    def unpack(self) -> Any:
        return pickle.loads(self.head, buffers=self.buffers)


def receive(connection: Connection) -> Received:
    """Receive the next message; EOFError or OSError if the sender is gone."""
    head, sizes, shared = pickle.loads(connection.recv_bytes())
    if not shared:
        # Over bytes, which are immutable, the arrays would be read-only.
        return Received(head, [bytearray(connection.recv_bytes()) for _ in sizes])
    file = reduction.recv_handle(connection)
    try:
        memory = mmap.mmap(file, os.fstat(file).st_size)
    finally:
        os.close(file)
    extents = zip(_offsets(sizes), sizes, strict=True)
    views = [memoryview(memory)[offset : offset + size] for offset, size in extents]
    # Beyond the limit, copy and release the map: descriptors are scarce.
    if len(_maps) >= MAPPED:
        return Received(head, [bytearray(view) for view in views])
    _maps.add(memory)
    return Received(head, views)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return each buffer's offset in the file, aligned as NumPy's memory is."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets
