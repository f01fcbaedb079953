"""Where output goes, whatever becomes of it: a full disk, a closed pipe, a terminal that stands still.

Nobody waits for a `Sink`: it writes in a thread of its own, keeps what is not yet written up to a limit, and
counts what it could not write. torchrun writes where it reads, so a rank stands still when its terminal does.
"""

from __future__ import annotations

import os
import threading
from collections import deque

ROOM = 1 << 24
"""Bytes that may wait. More is left out: a terminal that stands still must not fill the host's memory."""


class Sink:
    """Writes to an open file descriptor, which stays the caller's.

    Attributes:
      name: what the place is called in messages.
      lost: bytes that could not be written.
      why: what the system said last, or that there was no room.
    """

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
        """Returns at once."""
        with self.changed:
            if self.size + len(data) > ROOM:
                self._lose(data, "it stood still")
                return
            self.waiting.append(data)
            self.size += len(data)
            self.changed.notify_all()

    def close(self, patience: float) -> None:
        """Waits until all is written, or nothing has been for `patience` seconds; what is left is lost."""
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
        """What was lost and why; empty if nothing was."""
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
                if self.waiting and self.waiting[0] is data:  # `close` may have given it up
                    self.waiting.popleft()
                    self.size -= len(data)
                    self.changed.notify_all()

    def _write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            try:
                n = os.write(self.descriptor, unwritten[:65536])
            except OSError as error:  # the next lines are tried again: a disk may have room by then
                with self.changed:
                    self._lose(unwritten, error.strerror or str(error))
                return
            self.written += n
            unwritten = unwritten[n:]

    def _lose(self, data: bytes | memoryview, why: str) -> None:
        self.lost, self.why = self.lost + len(data), why


class Terminal:
    """Standard output and standard error of the supervisor."""

    def __init__(self) -> None:
        self.out, self.err = Sink("stdout", 1), Sink("stderr", 2)

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        if text:
            self.err.put(f"jaxpar launch: {text}\n".encode(errors="replace"))

    def close(self, patience: float = 10) -> None:
        self.out.close(patience)
        self.say(self.out.report())
        self.err.close(patience)
