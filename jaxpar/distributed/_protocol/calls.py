"""The collective calls that a rank has begun, and which of them show that two ranks are deadlocked.

Ranks make the same calls in the same order, so the calls begun by one of two ranks include the calls begun by
the other. If each has begun a call that the other has not, they deadlock, however slow a rank is. torch
compares collectives only with TORCH_DISTRIBUTED_DEBUG=DETAIL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..group import ranks_text


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


class BegunLog:
    """The calls of one rank. `line` turns a call site into a source line, only when an error needs it."""

    def __init__(self, rank: int, line: Callable[[Any], str]):
        self.rank = rank
        self.number = 0
        """Number of calls begun so far, which the watching thread polls."""
        self._line = line
        self._begun: dict[str, tuple[int, Sequence[int] | None, int, str, Any]] = {}

    def record(self, call: str, name: str, needs: Sequence[int] | None, call_site: Any) -> None:
        before = self._begun.get(name)
        self.number += 1
        self._begun[name] = (before[0] + 1 if before else 1, needs, self.number, call, call_site)

    def calls(self) -> dict[str, Begun]:
        return {
            name: Begun(count, needs, number, call, self._line(call_site))
            for name, (count, needs, number, call, call_site) in dict(self._begun).items()
        }

    def counts(self, rank: int) -> dict[str, int]:
        """Return the calls begun per name; on ranks other than `rank`, only calls that need `rank`."""
        is_own = self.rank == rank
        begun = dict(self._begun).items()
        return {name: n for name, (n, needs, *_) in begun if is_own or needs is None or rank in needs}

    @property
    def last(self) -> str:
        return str(max(self.calls().values(), key=lambda begun: begun.number, default=""))


def first_missed(waiting_rank: BegunCalls, other_rank: BegunCalls, rank: int) -> Begun | None:
    calls = [
        begun
        for name, begun in waiting_rank.items()
        if (begun.needs is None or rank in begun.needs)
        and begun.calls > (other_rank[name].calls if name in other_rank else 0)
    ]
    return min(calls, key=lambda begun: begun.number, default=None)


def skipping_call(rank: BegunCalls, other_rank: BegunCalls) -> Begun | None:
    """Return a call of `rank`, which skipped one that `other_rank` began earlier; or None.

    Steps are dispatched, so a rank that makes one too many waits only in a later call, which both make.
    """
    for skipped_name, skipped in other_rank.items():
        if skipped.needs is not None or (skipped_name in rank and rank[skipped_name].calls >= skipped.calls):
            continue
        for name, begun in other_rank.items():
            is_later = begun.needs is None and begun.number > skipped.number
            if is_later and name in rank and rank[name].calls >= begun.calls:
                return rank[name]
    return None


def deadlock(snapshots: Mapping[int, BegunCalls], rank: int) -> str:
    """Return the error text if this rank and others are deadlocked, or ""."""
    # One missing call proves nothing, since that rank may be slow. Only two that miss each other do.
    calls: dict[int, Begun] = {}
    for r, other_snapshot in snapshots.items():
        own_snapshot = snapshots[rank]
        own_call, other_call = (
            first_missed(own_snapshot, other_snapshot, r),
            first_missed(other_snapshot, own_snapshot, rank),
        )
        own_call = own_call or skipping_call(own_snapshot, other_snapshot)
        other_call = other_call or skipping_call(other_snapshot, own_snapshot)
        if own_call and other_call:
            calls |= {rank: own_call, r: other_call}
    calls = calls or circle(snapshots, rank)
    if not calls:
        return ""
    return (
        f"The ranks wait for each other in different calls: {positions_text(calls)}. All make the same calls "
        "in the same order: take the call out of the `if` or the loop that only some of them pass, and end "
        "the job."
    )


def circle(snapshots: Mapping[int, BegunCalls], rank: int) -> dict[int, Begun]:
    """Return the calls of a shortest circle of ranks through `rank`, or {}.

    Each has begun a call that the next one, which it needs, has not. A snapshot may be old: that a rank has
    begun one call and not the other shows their order in its program, and the orders contradict each other.
    """
    paths: deque[tuple[int, dict[int, Begun]]] = deque([(rank, {})])
    reached: set[int] = set()
    while paths:
        last, calls = paths.popleft()
        for r in snapshots.keys() - reached:
            if call := first_missed(snapshots[last], snapshots[r], r):
                if r == rank:
                    return {**calls, last: call}
                reached.add(r)
                paths.append((r, {**calls, last: call}))
    return {}


def positions_text(positions: Mapping[int, object]) -> str:
    """Format where ranks are: `rank 0 is at barrier (train.py:31), ranks 1, 2 are at ...`."""
    ranks: dict[str, list[int]] = {}
    for r in sorted(positions):
        ranks.setdefault(str(positions[r]), []).append(r)
    return ", ".join(f"{ranks_text(r)} {'are' if len(r) > 1 else 'is'} at {at}" for at, r in ranks.items())
