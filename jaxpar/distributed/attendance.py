"""attendance: a call that rank 0 may make alone, and in which the others take part if they make it too.

`if rank == 0: checkpointer.save(...)` is the line of every torch tutorial, and `save` cannot see the `if`. So
rank 0 asks who comes. A rank that comes sends its text. One that begins another call, which rank 0 had not
begun when it asked, has gone by, and says so: ranks make the same calls in the same order, so it will not
come any more. Until it has done one of both, nobody can know. Rank 0 then tells those that came what all
have said.

Each rank sends rank 0 a stream: its texts, with what it had begun by then, and the attendances that it went
by. A text of a rank that had begun more than rank 0 is for a later one, however early it arrives.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from ..errors import DistributedError
from . import _fail_together, _messages, whereabouts
from .exchange import PREFIX, delete, put, take
from .group import Group, current, ranks_text

Counts = dict[str, int]
"""How many calls of each name a rank has begun, of those that need rank 0 and another rank."""

_sent: Counter[tuple[int, str]] = Counter()
"""Entries of this rank's stream, by group and attendance."""
_read: Counter[tuple[int, str, int]] = Counter()
"""On rank 0: entries read, by group, attendance and rank."""
_early: dict[tuple[int, str, int], dict[str, Any]] = {}
"""On rank 0: texts that came before their attendance."""
_calls: Counter[tuple[int, str]] = Counter()
_pending: list[tuple[str, int, Counts]] = []
"""Attendances that this rank has neither come to nor gone by."""
_lock = threading.Lock()


def attend(what: str, text: str, timeout: float, *, label: str = "") -> list[str | None]:
    """The text of every rank that makes this call, None for the others; on all that make it.

    Args:
      what: names the attendance. said: what users call it.
      timeout: seconds until a rank is missing that neither comes nor goes by.

    Raises:
      DistributedError: a rank is missing. DivergenceError: a rank came, and rank 0 is in another call.
    """
    group = current()
    if group is None or group.size == 1:
        return [text]
    return (_lead if group.rank == 0 else _come)(group, what, text, timeout, label or what)


def _lead(group: Group, what: str, text: str, timeout: float, label: str) -> list[str | None]:
    with _lock:
        _calls[group.generation, what] += 1
        call = _calls[group.generation, what]
    begun = _counts()
    whereabouts.begin(label, f"{what} led", ())
    _messages.send("attend", what=what, call=call, begun=begun)
    texts: list[str | None] = [text]
    text_numbers = {}
    for rank in range(1, group.size):
        with whereabouts.waiting([rank]):
            entry = _next(group, what, rank, call, begun, timeout)
        texts.append(None if entry is None else entry["text"])
        if entry is not None:
            text_numbers[rank] = entry["number"]
            whereabouts.begin(label, f"{what} of rank {rank}", ())
    for rank, number in text_numbers.items():
        answer = json.dumps({"call": call, "texts": texts})
        put(f"{_folder(group, what)}/answers/{rank}/{number}", answer)
    return texts


def _next(
    group: Group, what: str, rank: int, call: int, begun: Counts, timeout: float
) -> dict[str, Any] | None:
    """What a rank says to this attendance; None if it went by."""
    stream = group.generation, what, rank
    while True:
        entry = _early.pop(stream, None)
        if entry is None:
            _read[stream] += 1
            key = f"{_folder(group, what)}/{rank}/{_read[stream]}"
            entry_text = take(key, timeout)
            if entry_text is None:
                _read[stream] -= 1
                raise DistributedError(
                    f"{what}: {ranks_text([rank])} neither came nor went on within {timeout:g} s."
                )
            delete(key)
            entry = json.loads(entry_text)
        if "text" in entry:
            if not _beyond(entry["begun"], begun):
                return entry
            _early[stream] = entry
            return None
        if entry["passed"] == call:
            return None


def _come(group: Group, what: str, text: str, timeout: float, label: str) -> list[str | None]:
    # Rank 0 counts the texts that it has read, so it is known to have come or not.
    begun = _counts()
    whereabouts.begin(label, f"{what} of rank {group.rank}", (0,))
    number = _send(group, what, {"text": text, "begun": begun})
    key = f"{_folder(group, what)}/answers/{group.rank}/{number}"
    with whereabouts.waiting([0]):
        answer = take(key, timeout)
    if answer is None:
        raise DistributedError(f"{what}: rank 0 did not come within {timeout:g} s.")
    delete(key)
    result = json.loads(answer)
    with _lock:
        _pending[:] = [pending for pending in _pending if pending[0] != what or pending[1] > result["call"]]
    return result["texts"]


def _send(group: Group, what: str, entry: Mapping[str, object]) -> int:
    with _lock:
        _sent[group.generation, what] += 1
        number = _sent[group.generation, what]
        put(f"{_folder(group, what)}/{group.rank}/{number}", json.dumps({**entry, "number": number}))
    return number


def _counts() -> Counts:
    log = whereabouts.current()
    return {} if log is None else log.counts(0)


def _beyond(rank_counts: Counts, leader_counts: Counts) -> bool:
    return any(count > leader_counts.get(name, 0) for name, count in rank_counts.items())


def hear(message: _messages.Message) -> None:
    """Rank 0 asks who comes. Runs in the thread of the messages."""
    group, log = current(), whereabouts.current()
    if group is None or log is None or group.rank == 0:
        return
    with _lock:
        _pending.append((message["what"], message["call"], message["begun"]))
        log.after = go_by
    go_by()


def go_by() -> None:
    """Says which attendances this rank has gone by; called again after the next call that it begins."""
    group, log = current(), whereabouts.current()
    assert group is not None
    assert log is not None
    with _lock:  # both threads come here
        missed = [
            pending for pending in _pending if _beyond(_counts_without(log, group, pending[0]), pending[2])
        ]
        for pending in missed:
            _pending.remove(pending)
        log.after = go_by if _pending else None
    for what, call, _ in missed:
        _send(group, what, {"passed": call})


def _counts_without(log: whereabouts.CallLog, group: Group, what: str) -> Counts:
    """What this rank has begun, without what it has sent to that attendance, which is not going by it."""
    counts = log.counts(0)
    counts.pop(f"{what} of rank {group.rank}", None)
    return counts


def take_along(text: str, code: int) -> NoReturn:
    """Ends all ranks with an exit code, where the others do not take part in what rank 0 does."""
    _fail_together.go(text, code=code, others=code)
    raise SystemExit(code)


def forget() -> None:
    for state in (_sent, _read, _early, _calls, _pending):
        state.clear()


def _folder(group: Group, what: str) -> str:
    return f"{PREFIX}/{group.generation}/{what}"
