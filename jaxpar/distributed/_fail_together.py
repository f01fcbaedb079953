"""A rank that leaves with an exception takes the others with it, at once and with its reason.

Left alone, Python would wait for the other ranks at JAX's shutdown barrier, while these wait for it in a
collective. When the heartbeats stop, after ten seconds, JAX would end them with a signal and without a
reason. torch's ranks get an exception from the collective; XLA's collectives raise none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from ..errors import DistributedError
from . import _messages
from .exchange import PREFIX, put, sleep
from .group import current, rank, size

LAST_WORDS = 4000
"""Characters of a reason that the other ranks print, at most."""
PATIENCE = 2.0
"""Seconds that rank 0 waits for the others to end."""

_before: Callable[[type[BaseException], BaseException, TracebackType | None], object] | None = None


def watch() -> None:
    """Makes an exception that leaves the script end all ranks."""
    global _before
    _before, sys.excepthook = sys.excepthook, _leave
    _messages.on("left", _follow)


def forget() -> None:
    global _before
    if sys.excepthook is _leave:
        sys.excepthook = _before or sys.__excepthook__
    _before = None


def go(text: str, reason: str = "", code: int = 1, others: int = 1) -> None:
    """Prints a text, tells the other ranks the reason, and ends this process and, with `others`, those."""
    _say(text)
    with contextlib.suppress(DistributedError):
        _messages.send("left", reason=(reason or text)[:LAST_WORDS], code=others)
    _end(code)


def _leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        go(f"rank {rank()} of {size()} was interrupted", code=130)
    reason = "".join(traceback.format_exception_only(kind, error)).strip()
    if _before is not None and _before is not sys.__excepthook__:
        _before(kind, error, trace)  # rich, IPython and others have a display of their own
        go(f"[rank {rank()}] {reason}", reason)
    lines = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    go("\n".join(f"[rank {rank()}] {line}" for line in lines.splitlines()), reason)


def _follow(message: _messages.Message) -> None:
    if message["rank"] == rank():
        return
    _say(f"rank {rank()} of {size()} ends because rank {message['rank']} has ended: {message['reason']}")
    _end(message["code"])


def _end(code: int) -> None:
    """Ends this process, rank 0 last: the others hear of everything through it, and abort without it."""
    group = current()
    assert group is not None
    folder = f"{PREFIX}/{group.generation}/gone"
    with contextlib.suppress(DistributedError):
        if group.rank:
            put(f"{folder}/{group.rank}", "")
        else:
            deadline = time.monotonic() + PATIENCE
            for other in range(1, group.size):
                sleep(f"{folder}/{other}", deadline - time.monotonic())
            time.sleep(0.1)
    os._exit(code)


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
