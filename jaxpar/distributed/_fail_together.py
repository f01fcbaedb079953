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
from collections.abc import Callable, Mapping
from types import TracebackType

from ..errors import DistributedError
from . import _messages
from ._protocol.ending import Ending
from .exchange import PREFIX, read_blocking, run
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
    _end(code, {"reason": (reason or text)[:LAST_WORDS], "code": others})


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


def _end(code: int, fields: Mapping[str, object] | None = None) -> None:
    """End this process, after a message with `fields` to the others if they do not know that it ends."""
    group = current()
    assert group is not None
    ending = Ending(group.rank, group.size, f"{PREFIX}/{group.generation}/gone")
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(DistributedError):
        call = ending.end() if fields is None else ending.fail(fields)
        run(call, lambda wait: read_blocking(wait.key, deadline - time.monotonic()))
        if not group.rank:  # the others set their keys just before they exit
            time.sleep(0.1)
    # `sys.exit` would run JAX's atexit handlers, which wait at the shutdown barrier.
    os._exit(code)


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
