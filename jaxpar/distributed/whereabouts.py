"""whereabouts: which calls that need other ranks has this rank begun, and can the others still come to them?

Ranks make the same calls in the same order, so of two ranks one has begun what the other has, and perhaps
more. If each has begun a call that the other has not, they wait for each other, now or soon, and for ever:
one `save`s where the other trains. That is certain whenever the two were asked and however slow they are, so
a long compilation or a slow disk is never taken for it. Beginning a call costs a microsecond; comparing is
`_deadlock_watch`'s, and only happens when nothing was begun for some seconds.

torch compares collectives only if TORCH_DISTRIBUTED_DEBUG=DETAIL is set, and then every one; without it the
ranks wait until the timeout, or for ever.
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
    """A call, the last one of its name: how many of them there were, the ranks without which it cannot end
    (None for all), which of this rank's calls it is, what users call it, and their line."""

    calls: int
    needs: Sequence[int] | None
    number: int
    call: str
    line: str

    def __str__(self) -> str:
        return f"{self.call} ({self.line})" if self.line else self.call


BegunCalls: TypeAlias = "Mapping[str, Begun]"
"""Where a rank is: what it has begun, by the name that is counted."""


class CallLog:
    """Those of this rank, while it is a member of one group."""

    def __init__(self, group: Group):
        self.group = group
        self.number = 0
        """Calls begun so far: what the watching thread looks at."""
        self._begun: dict[str, tuple[int, Sequence[int] | None, int, str, CodeType, int]] = {}
        self.waits_for: list[int] = []
        """The ranks for which the main thread waits on the host; empty while it waits for none."""
        self.problem = ""
        """What all ranks know to be wrong. Nothing can be begun any more."""
        self.after: Callable[[], object] | None = None
        """What to do after the next call that is begun."""
        self.raised = False
        """Whether the main thread has heard of it."""

    def begin(self, call: str, name: str, needs: Sequence[int] | None) -> None:
        if self.problem:
            self.complain()
        frame = _outside(sys._getframe(2))
        before = self._begun.get(name)
        self.number += 1
        # Not the frame itself, which would keep every array that its function holds.
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
        """How many calls of each name were begun, on another rank than `rank` of those that need it."""
        everything = self.group.rank == rank
        begun_calls = dict(self._begun).items()
        return {
            name: count
            for name, (count, needs, *_) in begun_calls
            if everything or needs is None or rank in needs
        }

    @property
    def last(self) -> str:
        """The last call that was begun."""
        return str(max(self.calls().values(), key=lambda begun: begun.number, default=""))


class _ProcessLog:
    """Of this process: one object, so that a test can have another."""

    log: CallLog | None = None
    main = threading.main_thread().ident


_process = _ProcessLog()


def enter(group: Group) -> CallLog:
    _process.log = CallLog(group)
    return _process.log


def leave() -> None:
    _process.log = None


def current() -> CallLog | None:
    """Those of this rank; None without a group."""
    return _process.log


def begin(call: str, name: str = "", needs: Sequence[int] | Group | None = None) -> None:
    """Notes that this rank begins a call in which it may wait for others.

    Args:
      call: what users call it. name: what is counted, the same on all ranks; by default `call`.
      needs: the ranks without which it cannot end, or the group whose members they are; None for all.

    Calls in other threads than the main one are in no order, so they are not noted.

    Raises:
      DivergenceError: the ranks were found in different calls.
    """
    log = _process.log
    if log is None or threading.get_ident() != _process.main:
        return
    name = name or call
    if isinstance(needs, Group):
        # Each group counts by itself: its members may be in any order with those of another.
        name, needs = (f"{name}, {needs.name}", needs.ranks) if needs.name else (name, None)
    log.begin(call, name, needs)


@contextlib.contextmanager
def waiting(ranks: list[int]) -> Iterator[None]:
    """Notes for whom the main thread waits, so that a long wait is not silent."""
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
    """Raises DivergenceError if the ranks were found in different calls since this rank began to wait."""
    log = _process.log
    if log is not None and log.problem and threading.get_ident() == _process.main:
        log.complain()


def first_missed(waiting_rank: BegunCalls, other_rank: BegunCalls, rank: int) -> Begun | None:
    """What `one` began first of all that it needs `rank` for, which is at `other` and has not begun it."""
    calls = [
        begun
        for name, begun in waiting_rank.items()
        if (begun.needs is None or rank in begun.needs)
        and begun.calls > (other_rank[name].calls if name in other_rank else 0)
    ]
    return min(calls, key=lambda begun: begun.number, default=None)


def deadlock(snapshots: Mapping[int, BegunCalls], rank: int) -> str:
    """What to say if this rank and another one are in different calls; "" if none is known to be."""
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
    """The user's line that is being run."""
    frame = _outside(sys._getframe(1))
    return _line(frame.f_code, frame.f_lasti)


def _outside(frame: FrameType) -> FrameType:
    libraries = _libraries()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    return frame


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Where frames are that are not the user's."""
    import flax
    import jax

    packages = [str(Path(file).parent) for file in (os.path.dirname(__file__), jax.__file__, flax.__file__)]
    return (
        *(folder + os.sep for folder in packages),
        "<frozen",
        sysconfig.get_path("stdlib") + os.sep + "contextlib",
    )


def _line(code: CodeType, instruction: int) -> str:
    """`train.py:31`, relative to the working directory; "" if no line of the user's made the call."""
    if code.co_filename.startswith(_libraries()):
        return ""
    number = next((n for start, end, n in code.co_lines() if start <= instruction < end and n), 0)
    file = code.co_filename
    with contextlib.suppress(OSError, ValueError):
        near = os.path.relpath(file)
        file = file if near.startswith("..") or file.startswith("<") else near
    return f"{file}:{number}"
