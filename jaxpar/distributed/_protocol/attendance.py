"""Attendance: a collective call on the host that rank 0 may also make alone.

torch tutorials write `if rank == 0: checkpointer.save(...)`, and `save` cannot see the `if`. So rank 0
announces the call to all ranks. A rank that makes the same call sends its text. A rank that begins a
different call, which rank 0 had not begun at the announcement, has passed the call and reports that: ranks
make the same calls in the same order, so it cannot join later. So has a rank that waits for rank 0's answer
about a step that rank 0 had not reached. And so has one that waits, in a group without rank 0, for a rank
that has passed the call. Rank 0 waits until one of the two happens, and then sends all texts to the ranks
that joined. A text from a rank that had begun more calls than rank 0
belongs to a later call, however early it arrives.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...errors import DistributedError
from ..group import ranks_text
from .calls import BegunLog
from .effects import Begin, Delete, Effects, Post, Read, Send

Counts = dict[str, int]
"""Calls begun by a rank, by name, counting only calls that need rank 0 and a second rank."""


class CallPosition(NamedTuple):
    """The calls and steps that a rank had begun when it began a call of rank 0's, or passed it."""

    begun: Counts
    steps: dict[str, int]


class Announcement(NamedTuple):
    """Rank 0's call number `call` of the name `what`, and the position of ranks that made or passed it."""

    what: str
    call: int
    positions: dict[int, CallPosition]


class Attendance:
    """One rank's side. `latest_steps` and `asks_beyond` are `_protocol.steps`' for this rank's records."""

    def __init__(
        self,
        log: BegunLog,
        size: int,
        folder: str,
        latest_steps: Callable[[], dict[str, int]],
        asks_beyond: Callable[[Mapping[str, int], int], bool],
        has_subgroups: Callable[[], bool],
    ):
        self._log, self._size, self._folder = log, size, folder
        self._has_subgroups = has_subgroups
        self._latest_steps, self._asks_beyond = latest_steps, asks_beyond
        self._sent: Counter[str] = Counter()
        """Number of entries in this rank's stream, by name."""
        self._read: Counter[tuple[str, int]] = Counter()
        """On rank 0: number of entries read, by name and rank."""
        self._early: dict[tuple[str, int], dict[str, Any]] = {}
        """On rank 0: entries that belong to a later call."""
        self._calls: Counter[str] = Counter()
        self.pending: list[Announcement] = []
        """Announced calls that this rank has neither joined nor passed."""

    def exchange(self, what: str, text: str, label: str, timeout: float) -> Effects[list[str | None]]:
        """Return the texts of all ranks that make this call, None for the others. Errors name `timeout`."""
        return (self._come if self._log.rank else self._lead)(what, text, label, timeout)

    def _lead(self, what: str, text: str, label: str, timeout: float) -> Effects[list[str | None]]:
        self._calls[what] += 1
        call = self._calls[what]
        begun = self._log.counts(0)
        yield Begin(label, f"{what} led", ())
        steps = self._latest_steps()
        yield Send("attend", {"what": what, "call": call, "begun": begun, "steps": steps})
        texts: list[str | None] = [text]
        text_numbers = {}
        for rank in range(1, self._size):
            entry = yield from self._next(what, rank, call, begun, timeout)
            texts.append(None if entry is None else entry["text"])
            if entry is not None:
                text_numbers[rank] = entry["number"]
                yield Begin(label, f"{what} of rank {rank}", ())
        for rank, number in text_numbers.items():
            answer = json.dumps({"call": call, "texts": texts})
            yield Post(f"{self._folder}/{what}/answers/{rank}/{number}", answer)
        return texts

    def _next(
        self, what: str, rank: int, call: int, begun: Counts, timeout: float
    ) -> Effects[dict[str, Any] | None]:
        """Return a rank's entry for this call, None if the rank passed it."""
        stream = what, rank
        while True:
            entry = self._early.pop(stream, None)
            if entry is None:
                key = f"{self._folder}/{what}/{rank}/{self._read[stream] + 1}"
                text = yield Read(key, rank)
                if text is None:  # read again by the next call, if the entry arrives late
                    raise DistributedError(
                        f"{what}: {ranks_text([rank])} neither came nor went on within {timeout:g} s."
                    )
                self._read[stream] += 1
                yield Delete(key)
                entry = json.loads(text)
            if "text" in entry:
                # A rank ahead of rank 0 has passed this call; its text answers one that rank 0 makes later.
                if not _beyond(entry["begun"], begun):
                    return entry
                self._early[stream] = entry
                return None
            if entry["passed"] == call:
                return None

    def _come(self, what: str, text: str, label: str, timeout: float) -> Effects[list[str | None]]:
        # Needs rank 0, which counts the texts it has read: if it is in a different call, the watch detects
        # that.
        begun = self._log.counts(0)
        yield Begin(label, f"{what} of rank {self._log.rank}", (0,))
        post = self._entry(what, {"text": text, "begun": begun})
        yield post
        key = f"{self._folder}/{what}/answers/{self._log.rank}/{post.key.rpartition('/')[2]}"
        answer = yield Read(key, 0)
        if answer is None:
            raise DistributedError(f"{what}: rank 0 did not come within {timeout:g} s.")
        result = json.loads(answer)
        self.pending = [
            pending for pending in self.pending if pending.what != what or pending.call > result["call"]
        ]
        yield Delete(key)
        return result["texts"]

    def _entry(self, what: str, entry: Mapping[str, object]) -> Post:
        self._sent[what] += 1
        number = self._sent[what]
        key = f"{self._folder}/{what}/{self._log.rank}/{number}"
        return Post(key, json.dumps({**entry, "number": number}))

    def hear(self, message: Mapping[str, Any]) -> list[Post | Send]:
        """Handle rank 0's announcement of a call, or the report of a rank that has passed it."""
        if self._log.rank == 0:
            return []
        position = CallPosition(message["begun"], message["steps"])
        what, call, rank = message["what"], message["call"], message["rank"]
        if rank == 0:
            self.pending.append(Announcement(what, call, {0: position}))
        for pending in self.pending:
            if (pending.what, pending.call) == (what, call):
                pending.positions[rank] = position
        return self.go_by()

    def go_by(self) -> list[Post | Send]:
        """Return entries for the calls that this rank has passed. Runs after every call that it begins."""
        missed = [pending for pending in self.pending if self._has_passed(pending)]
        self.pending = [pending for pending in self.pending if pending not in missed]
        effects: list[Post | Send] = []
        for what, call, _ in missed:
            effects.append(self._entry(what, {"passed": call}))
            # A rank in a call of a group without rank 0 shows only to the other members that it has passed.
            if self._has_subgroups():
                position = CallPosition(self._log.counts(self._log.rank), self._latest_steps())
                effects.append(Send("attend", {"what": what, "call": call, **position._asdict()}))
        return effects

    def _has_passed(self, pending: Announcement) -> bool:
        for rank, (begun, steps) in pending.positions.items():
            counts = self._log.counts(rank)
            # This rank's own texts for the same call do not pass it.
            counts.pop(f"{pending.what} of rank {self._log.rank}", None)
            if _beyond(counts, begun) or self._asks_beyond(steps, rank):
                return True
        return False


def _beyond(rank_counts: Counts, leader_counts: Counts) -> bool:
    return any(count > leader_counts.get(name, 0) for name, count in rank_counts.items())
