"""What the workers print: whole lines with the rank in front, log files, and the last lines of each rank.

torchrun's counterparts are `--tee` and `--log-dir`.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, BinaryIO

KEPT, LONGEST = 400, 65536


class Stream:
    """One pipe of one rank, which keeps the last lines for the report."""

    def __init__(self, rank: int, pipe: IO[bytes], echo: BinaryIO | None, file: BinaryIO | None) -> None:
        self.pipe, self.echo, self.file = pipe, echo, file
        self.prefix = b"[%d] " % rank
        self.rest = b""
        self.lines: deque[bytes] = deque(maxlen=KEPT)

    def read(self) -> bool:
        """Reads what is there and passes it on; False at the end of the pipe."""
        chunk = os.read(self.pipe.fileno(), LONGEST)
        if self.file:
            self.file.write(chunk)
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        if self.rest and (not chunk or len(self.rest) >= LONGEST):  # a line may never end
            whole.append(self.rest)
            self.rest = b""
        self.lines.extend(whole)
        if self.echo and whole:
            try:
                self.echo.write(b"".join(self.prefix + line + b"\n" for line in whole))
                self.echo.flush()
            except BrokenPipeError:  # as of `| head`, which is no reason to stop the training
                self.echo = None
        return bool(chunk)


class Output:
    """Reads all pipes of a gang, in a thread: a terminal that stands still must not stop the supervisor."""

    def __init__(self, tee: bool, folder: Path | None) -> None:
        self.tee, self.folder = tee, folder
        self.streams: dict[int, tuple[Stream, Stream]] = {}
        self.selector = selectors.DefaultSelector()
        self.files: list[BinaryIO] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, rank: int, out: IO[bytes] | None, err: IO[bytes] | None) -> None:
        assert out is not None
        assert err is not None
        file = None
        if self.folder:
            file = open(self.folder / f"rank_{rank}.log", "ab", buffering=0)  # noqa: SIM115
            self.files.append(file)
        echoes = (sys.stdout.buffer, sys.stderr.buffer) if self.tee else (None, None)
        pair = (Stream(rank, out, echoes[0], file), Stream(rank, err, echoes[1], file))
        self.streams[rank] = pair
        for stream in pair:
            self.selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        while self.selector.get_map():
            for key, _ in self.selector.select():
                if not key.data.read():
                    self.selector.unregister(key.fileobj)

    def last_words(self, rank: int) -> list[str]:
        """What a rank wrote last, on stderr or, if that is empty, on stdout."""
        out, err = self.streams[rank]
        lines = list(err.lines) or list(out.lines)
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        """Closes the files, after what is still on its way."""
        self.thread.join(1)  # not for ever: a process that outlives its gang holds a pipe open
        if self.thread.is_alive():
            return
        self.selector.close()
        for file in self.files:
            file.close()
        for pair in self.streams.values():
            for stream in pair:
                stream.pipe.close()
