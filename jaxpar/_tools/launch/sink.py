"""Write output without ever blocking the reader, even on a full disk, a closed pipe or a stopped terminal."""

from __future__ import annotations

import os
import threading
from collections import deque

ROOM = 1 << 24
"""The most buffered bytes. Further output is dropped, so that a stopped terminal cannot fill the memory."""


class Sink:
    """Writes to an open file descriptor in a thread, and counts the `lost` bytes and `why` they were lost."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self.lost, self.why = 0, ""
        self.waiting: deque[bytes] = deque()
        self.size = self.written = 0
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._run, name=f"jaxpar launch: {name}", daemon=True)
        self.thread.start()

    def put(self, data: bytes) -> None:
        """Queue bytes; never blocks."""
        with self.changed:
            if self.size + len(data) > ROOM:
                self._lose(data, "it stood still")
                return
            self.waiting.append(data)
            self.size += len(data)
            self.changed.notify_all()

    def close(self, patience: float) -> None:
        """Wait until all is written, or nothing has been for `patience` seconds; then drop the remainder."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            written = -1
            while self.size and self.written != written:
                written = self.written
                self.changed.wait_for(lambda: not self.size, patience)
            for data in self.waiting:
                self._lose(data, "it stood still")
            self.waiting.clear()

    def report(self) -> str:
        """Return what was lost and why; empty if nothing was."""
        if not self.lost:
            return ""
        return f"{self.lost:,} bytes of output could not be written to {self.name}: {self.why}"

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.closed)
                if not self.waiting:
                    return
                data = self.waiting[0]
            self._write(data)
            with self.changed:
                if self.waiting and self.waiting[0] is data:  # `close` may have dropped it meanwhile
                    self.waiting.popleft()
                    self.size -= len(data)
                    self.changed.notify_all()

    def _write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            try:
                n = os.write(self.descriptor, unwritten[:65536])
            except OSError as error:  # drops only these bytes: the disk may have room for the next ones
                with self.changed:
                    self._lose(unwritten, error.strerror or str(error))
                return
            self.written += n
            unwritten = unwritten[n:]

    def _lose(self, data: bytes | memoryview, why: str) -> None:
        self.lost, self.why = self.lost + len(data), why


class Terminal:
    def __init__(self) -> None:
        self.out, self.err = Sink("stdout", 1), Sink("stderr", 2)

    def say(self, text: str) -> None:
        if text:
            self.err.put(f"jaxpar launch: {text}\n".encode(errors="replace"))

    def close(self, patience: float = 10) -> None:
        self.out.close(patience)
        self.say(self.out.report())
        self.err.close(patience)
