"""End all ranks at once, with the reason, when one rank exits with an exception.

Otherwise JAX would kill ranks in a collective by a signal, after minutes. torch's collectives raise; XLA's
cannot.
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
from .exchange import PREFIX, post, read_blocking
from .group import current, rank, size

LAST_WORDS = 4000
"""Maximum characters of the reason that the other ranks print."""
PATIENCE = 2.0
"""Seconds that rank 0 waits for the other ranks to end."""

_before: Callable[[type[BaseException], BaseException, TracebackType | None], object] | None = None


def watch() -> None:
    global _before
    _before, sys.excepthook = sys.excepthook, _leave
    _messages.on("left", _follow)


def forget() -> None:
    global _before
    if sys.excepthook is _leave:
        sys.excepthook = _before or sys.__excepthook__
    _before = None


def go(text: str, reason: str = "", code: int = 1, others: int = 1) -> None:
    """Print `text`, send `reason` to the other ranks, exit with `code`; the others exit with `others`."""
    _say(text)
    with contextlib.suppress(DistributedError):
        _messages.send("left", reason=(reason or text)[:LAST_WORDS], code=others)
    _end(code)


def _leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        _report(kind, error, trace)
    finally:
        os._exit(1)  # the report failed, possibly for lack of memory; Python's exit would wait for the others


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        go(f"rank {rank()} of {size()} was interrupted", code=130)
    reason = "".join(traceback.format_exception_only(kind, error)).strip()
    if _before is not None and _before is not sys.__excepthook__:
        _before(kind, error, trace)  # rich, IPython and others format it themselves
        go(f"[rank {rank()}] {reason}", reason)
    lines = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    go("\n".join(f"[rank {rank()}] {line}" for line in lines.splitlines()), reason)


def _follow(message: _messages.Message) -> None:
    if message["rank"] == rank():
        return
    _say(f"rank {rank()} of {size()} ends because rank {message['rank']} has ended: {message['reason']}")
    _end(message["code"])


def _end(code: int) -> None:
    """End this process, rank 0 last: it hosts the coordinator, without which the others abort."""
    group = current()
    assert group is not None
    folder = f"{PREFIX}/{group.generation}/gone"
    with contextlib.suppress(DistributedError):
        if group.rank:
            post(f"{folder}/{group.rank}", "")
        else:
            deadline = time.monotonic() + PATIENCE
            for other in range(1, group.size):
                read_blocking(f"{folder}/{other}", deadline - time.monotonic())
            # The others set their keys just before they exit.
            time.sleep(0.1)
    # `sys.exit` would run JAX's atexit handlers, which wait at the shutdown barrier.
    os._exit(code)


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
