"""call_log: record the collective calls that this rank has begun, with the user's source lines.

`_protocol.calls` finds deadlocks in the logs of several ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType

from ..errors import DivergenceError
from ._protocol.calls import Begun as Begun
from ._protocol.calls import BegunLog
from ._protocol.calls import deadlock as deadlock
from .group import Group

END = "the end of its script"

machine = threading.RLock()
"""Held while a thread advances the state machine of `_protocol`."""


class CallLog(BegunLog):
    """This process's log, and what its threads know of a deadlock."""

    def __init__(self, group: Group):
        super().__init__(group.rank, line)
        self.group = group
        self.waits_for: list[int] = []
        """Ranks that the main thread waits for on the host."""
        self.problem = ""
        """Error text of a deadlock. Once set, every call raises it."""
        self.after: Callable[[], object] | None = None
        """Called after every call that is begun, and before this rank waits in anything else."""
        self.raised = False
        """Whether the main thread has raised the problem."""

    def begin(self, call: str, name: str, needs: Sequence[int] | None) -> None:
        if self.problem:
            self.complain()
        with machine:
            self.record(call, name, needs, call_site())
        if self.after is not None:
            self.after()

    def complain(self) -> None:
        self.raised = True
        raise DivergenceError(self.problem)


class _ProcessLog:
    """This process's call log, in one object so that tests can replace it."""

    log: CallLog | None = None
    main = threading.main_thread().ident


_process = _ProcessLog()


def enter(group: Group) -> CallLog:
    _process.log = CallLog(group)
    return _process.log


def leave() -> None:
    _process.log = None


def current() -> CallLog | None:
    return _process.log


def begin(call: str, name: str = "", needs: Sequence[int] | Group | None = None) -> None:
    """Record that this rank begins a call in which it may wait for others; raise if they are deadlocked.

    `name`, by default `call`, is counted and equal on all ranks. The call needs the ranks, or the group,
    `needs` in order to end; None for all ranks.
    """
    # Calls in different threads have no defined order, so only the main thread's are recorded.
    log = _process.log
    if log is None or threading.get_ident() != _process.main:
        return
    name = name or call
    if isinstance(needs, Group):
        name, needs = counted(name, needs)
    log.begin(call, name, needs)


def counted(name: str, group: Group) -> tuple[str, Sequence[int] | None]:
    """Return the counted name and the needed ranks of a call of a group."""
    # Calls are counted per group: calls in different groups need no common order.
    return (f"{name}, {group.name}", group.ranks) if group.name else (name, None)


def waits() -> None:
    """Report that this rank waits for others in something that is not a call."""
    log = _process.log
    if log is not None and log.after is not None:
        log.after()


@contextlib.contextmanager
def waiting(ranks: list[int]) -> Iterator[None]:
    """Record the ranks that the main thread waits for, so that a long wait is logged."""
    log = _process.log
    if log is None or threading.get_ident() != _process.main:
        yield
        return
    log.waits_for = ranks
    try:
        yield
    finally:
        log.waits_for = []


def check() -> None:
    """Raise DivergenceError if the ranks were found to be deadlocked while this rank waits."""
    log = _process.log
    if log is not None and log.problem and threading.get_ident() == _process.main:
        log.complain()


def call_site() -> tuple[CodeType, int]:
    """Return where the user's code is, for `line`."""
    frame, libraries = sys._getframe(1), _libraries()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    # Not the frame itself, which would keep its function's arrays alive. The line number is computed only
    # for an error, because that takes longer than all the rest of a call.
    return frame.f_code, frame.f_lasti


@functools.cache
def _libraries() -> tuple[str, ...]:
    import flax
    import jax

    packages = [str(Path(file).parent) for file in (os.path.dirname(__file__), jax.__file__, flax.__file__)]
    return (
        *(folder + os.sep for folder in packages),
        "<frozen",
        sysconfig.get_path("stdlib") + os.sep + "contextlib",
    )


def line(call_site: tuple[CodeType, int]) -> str:
    """Format a source line as `train.py:31`, relative to the working directory; "" for library code."""
    code, instruction = call_site
    if code.co_filename.startswith(_libraries()):
        return ""
    number = next((n for start, end, n in code.co_lines() if start <= instruction < end and n), 0)
    file = code.co_filename
    with contextlib.suppress(OSError, ValueError):
        near = os.path.relpath(file)
        file = file if near.startswith("..") or file.startswith("<") else near
    return f"{file}:{number}"
