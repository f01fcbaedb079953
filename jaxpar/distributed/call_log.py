"""call_log: record the collective calls that this rank has begun, and detect deadlocks between ranks.

Ranks make the same calls in the same order, so the calls begun by one of two ranks include the calls begun by
the other. If each has begun a call that the other has not, they deadlock, however slow a rank is. torch
compares collectives only with TORCH_DISTRIBUTED_DEBUG=DETAIL.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

from ..errors import DivergenceError
from .group import Group, ranks_text

END = "the end of its script"


class Begun(NamedTuple):
    """The last call of one name: how many calls of the name have begun, the ranks it needs in order to end
    (None for all), its position among this rank's calls, its public name, and the user's source line."""

    calls: int
    needs: Sequence[int] | None
    number: int
    call: str
    line: str

    def __str__(self) -> str:
        return f"{self.call} ({self.line})" if self.line else self.call


BegunCalls: TypeAlias = "Mapping[str, Begun]"
"""The calls that a rank has begun, by counted name."""


class CallLog:
    def __init__(self, group: Group):
        self.group = group
        self.number = 0
        """Number of calls begun so far, which the watching thread polls."""
        self._begun: dict[str, tuple[int, Sequence[int] | None, int, str, CodeType, int]] = {}
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
        frame = _outside(sys._getframe(2))
        before = self._begun.get(name)
        self.number += 1
        # Not the frame itself, which would keep its function's arrays alive. The line number is computed only
        # for an error, because that takes longer than all the rest of a call.
        call_site = call, frame.f_code, frame.f_lasti
        self._begun[name] = (before[0] + 1 if before else 1, needs, self.number, *call_site)
        if self.after is not None:
            self.after()

    def complain(self) -> None:
        self.raised = True
        raise DivergenceError(self.problem)

    def calls(self) -> dict[str, Begun]:
        return {
            name: Begun(count, needs, number, call, _line(code, instruction))
            for name, (count, needs, number, call, code, instruction) in dict(self._begun).items()
        }

    def counts(self, rank: int) -> dict[str, int]:
        """Return the calls begun per name; on ranks other than `rank`, only calls that need `rank`."""
        is_own = self.group.rank == rank
        begun = dict(self._begun).items()
        return {name: n for name, (n, needs, *_) in begun if is_own or needs is None or rank in needs}

    @property
    def last(self) -> str:
        return str(max(self.calls().values(), key=lambda begun: begun.number, default=""))


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
        # Calls are counted per group: calls in different groups need no common order.
        name, needs = (f"{name}, {needs.name}", needs.ranks) if needs.name else (name, None)
    log.begin(call, name, needs)


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


def first_missed(waiting_rank: BegunCalls, other_rank: BegunCalls, rank: int) -> Begun | None:
    calls = [
        begun
        for name, begun in waiting_rank.items()
        if (begun.needs is None or rank in begun.needs)
        and begun.calls > (other_rank[name].calls if name in other_rank else 0)
    ]
    return min(calls, key=lambda begun: begun.number, default=None)


def deadlock(snapshots: Mapping[int, BegunCalls], rank: int) -> str:
    """Return the error text if this rank and a second rank are deadlocked, or ""."""
    # One missing call proves nothing, since that rank may be slow. Only two that miss each other do.
    calls: dict[int, Begun] = {}
    for r, other_snapshot in snapshots.items():
        own_call, other_call = (
            first_missed(snapshots[rank], other_snapshot, r),
            first_missed(other_snapshot, snapshots[rank], rank),
        )
        if own_call and other_call:
            calls |= {rank: own_call, r: other_call}
    if not calls:
        return ""
    ranks: dict[str, list[int]] = {}
    for r in sorted(calls):
        ranks.setdefault(str(calls[r]), []).append(r)
    positions = (f"{ranks_text(r)} {'are' if len(r) > 1 else 'is'} at {call}" for call, r in ranks.items())
    return (
        f"The ranks wait for each other in different calls: {', '.join(positions)}. All make the same calls "
        "in the same order: take the call out of the `if` or the loop that only some of them pass, and end "
        "the job."
    )


def caller() -> str:
    frame = _outside(sys._getframe(1))
    return _line(frame.f_code, frame.f_lasti)


def _outside(frame: FrameType) -> FrameType:
    libraries = _libraries()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    return frame


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


def _line(code: CodeType, instruction: int) -> str:
    """Format a source line as `train.py:31`, relative to the working directory; "" for library code."""
    if code.co_filename.startswith(_libraries()):
        return ""
    number = next((n for start, end, n in code.co_lines() if start <= instruction < end and n), 0)
    file = code.co_filename
    with contextlib.suppress(OSError, ValueError):
        near = os.path.relpath(file)
        file = file if near.startswith("..") or file.startswith("<") else near
    return f"{file}:{number}"
