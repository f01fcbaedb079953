"""The workers' output: lines with the rank as a prefix, log files, and the last lines of each rank."""

from __future__ import annotations

import os
import re
import selectors
import threading
from collections import deque
from pathlib import Path
from typing import IO, BinaryIO

from .sink import Sink, Terminal

# Of the stacks that faulthandler prints in a worker, even while its main thread is blocked in C++.
MAIN = re.compile(r"Current thread 0x")
FRAME = re.compile(r'  File "(.*)", line \d+ in ')
OURS = re.compile(r"<frozen runpy>|/jaxpar/_tools/launch/worker\.py$")
WAITING = re.compile(r"/(jax|jaxlib|jaxpar)/")
TAIL, LONGEST = 400, 65536


class Stream:
    def __init__(self, rank: int, pipe: IO[bytes], echo: Sink | None, file: Sink | None) -> None:
        self.pipe, self.echo, self.file = pipe, echo, file
        self.prefix = b"[%d] " % rank
        self.partial = b""
        self.lines: deque[bytes] = deque(maxlen=TAIL)

    def read(self) -> bool:
        """Forward the available output; return False at the end of the pipe."""
        chunk = os.read(self.pipe.fileno(), LONGEST)
        if self.file and chunk:
            self.file.put(chunk)
        *lines, self.partial = (self.partial + chunk).split(b"\n")
        # A progress bar may never end its line, and the buffer must stay bounded.
        if self.partial and (not chunk or len(self.partial) >= LONGEST):  # a line may never end
            lines.append(self.partial)
            self.partial = b""
        self.lines.extend(lines)
        if self.echo and lines:
            self.echo.put(b"".join(self.prefix + line + b"\n" for line in lines))
        return bool(chunk)


class GangOutput:
    """Reads all pipes of a gang in a thread, prints to `terminal` and writes files in `folder`."""

    def __init__(self, terminal: Terminal | None, folder: Path | None) -> None:
        self.terminal, self.folder = terminal, folder
        self.streams: dict[int, tuple[Stream, Stream]] = {}
        self.selector = selectors.DefaultSelector()
        self.files: list[tuple[BinaryIO, Sink]] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, rank: int, out: IO[bytes] | None, err: IO[bytes] | None) -> None:
        assert out is not None
        assert err is not None
        file = None
        if self.folder:
            path = self.folder / f"rank_{rank}.log"
            opened = open(path, "ab", buffering=0)  # noqa: SIM115
            file = Sink(str(path), opened.fileno())
            self.files.append((opened, file))
        echoes = (self.terminal.out, self.terminal.err) if self.terminal else (None, None)
        pair = (Stream(rank, out, echoes[0], file), Stream(rank, err, echoes[1], file))
        self.streams[rank] = pair
        for stream in pair:
            self.selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _run(self) -> None:
        while self.selector.get_map():
            for key, _ in self.selector.select():
                if not key.data.read():
                    self.selector.unregister(key.fileobj)

    def last_words(self, rank: int) -> list[str]:
        out, err = self.streams[rank]
        lines = list(err.lines) or list(out.lines)
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self, patience: float = 10) -> list[str]:
        """Write the pending output and close the files; return reports of what could not be written."""
        self.thread.join(1)  # with a limit, because a process that outlives its gang keeps a pipe open
        for _, sink in self.files:
            sink.close(patience)
        if not self.thread.is_alive():
            self.selector.close()
            for file, _ in self.files:
                file.close()
            for pair in self.streams.values():
                for stream in pair:
                    stream.pipe.close()
        return [sink.report() for _, sink in self.files if sink.lost]


def frames(lines: list[str]) -> list[str]:
    """Return the main thread's frames in the last dump, innermost first; empty without a dump."""
    starts = [i for i, line in enumerate(lines) if MAIN.match(line)]
    main_frames = []
    for line in lines[starts[-1] + 1 :] if starts else []:
        frame = FRAME.match(line)
        if frame is None:
            break
        if not OURS.search(frame[1]):
            main_frames.append(line)
    return main_frames


def waits(stack: list[str]) -> bool:
    """Return whether the innermost frame is JAX's, as in a process that waits for its peers."""
    frame = FRAME.match(stack[0]) if stack else None
    return frame is not None and WAITING.search(frame[1]) is not None
