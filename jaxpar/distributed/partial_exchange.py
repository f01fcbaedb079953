"""partial_exchange: a collective call on the host that rank 0 may also make alone.

torch tutorials write `if rank == 0: checkpointer.save(...)`, and `save` cannot see the `if`. So rank 0
announces the call to all ranks. A rank that makes the same call sends its text. A rank that begins a
different call, which rank 0 had not begun at the announcement, has passed the call and reports that: ranks
make the same calls in the same order, so it cannot join later. So has a rank that waits for rank 0's answer
about a step that rank 0 had not reached. Rank 0 waits until one of the two happens, and
then sends all texts to the ranks that joined. A text from a rank that had begun more calls than rank 0
belongs to a later call, however early it arrives.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ..errors import DistributedError
from . import _fail_together, _messages, call_log, step_agreement
from .exchange import PREFIX, delete, post, read
from .group import Group, current, ranks_text

Counts = dict[str, int]
"""Calls begun by a rank, by name, counting only calls that need rank 0 and a second rank."""


class Announcement(NamedTuple):
    """Rank 0's call number `call` of the name `what`; the calls and steps that it had begun before."""

    what: str
    call: int
    begun: Counts
    steps: dict[str, int]


_sent: Counter[tuple[int, str]] = Counter()
"""Number of entries in this rank's stream, by group generation and name."""
_read: Counter[tuple[int, str, int]] = Counter()
"""On rank 0: number of entries read, by group generation, name and rank."""
_early: dict[tuple[int, str, int], dict[str, Any]] = {}
"""On rank 0: entries that belong to a later call."""
_calls: Counter[tuple[int, str]] = Counter()
_pending: list[Announcement] = []
"""Announced calls that this rank has neither joined nor passed."""
_lock = threading.Lock()


def exchange_partially(what: str, text: str, timeout: float, *, label: str = "") -> list[str | None]:
    """Return the texts of all ranks that make this call, None for the others, on the ranks that make it.

    `label` is the call's public name, if it is not `what`. After `timeout` seconds DistributedError names a
    rank that has neither joined nor passed the call.
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
    call_log.begin(label, f"{what} led", ())
    _messages.send("attend", what=what, call=call, begun=begun, steps=step_agreement.latest_steps())
    texts: list[str | None] = [text]
    text_numbers = {}
    for rank in range(1, group.size):
        with call_log.waiting([rank]):
            entry = _next(group, what, rank, call, begun, timeout)
        texts.append(None if entry is None else entry["text"])
        if entry is not None:
            text_numbers[rank] = entry["number"]
            call_log.begin(label, f"{what} of rank {rank}", ())
    for rank, number in text_numbers.items():
        answer = json.dumps({"call": call, "texts": texts})
        post(f"{_folder(group, what)}/answers/{rank}/{number}", answer)
    return texts


def _next(
    group: Group, what: str, rank: int, call: int, begun: Counts, timeout: float
) -> dict[str, Any] | None:
    """Return a rank's entry for this call, None if the rank passed it."""
    stream = group.generation, what, rank
    while True:
        entry = _early.pop(stream, None)
        if entry is None:
            _read[stream] += 1
            key = f"{_folder(group, what)}/{rank}/{_read[stream]}"
            entry_text = read(key, timeout)
            if entry_text is None:
                # Read again by the next call, if the entry arrives late.
                _read[stream] -= 1
                raise DistributedError(
                    f"{what}: {ranks_text([rank])} neither came nor went on within {timeout:g} s."
                )
            delete(key)
            entry = json.loads(entry_text)
        if "text" in entry:
            # A rank ahead of rank 0 has passed this call; its text answers one that rank 0 makes later.
            if not _beyond(entry["begun"], begun):
                return entry
            _early[stream] = entry
            return None
        if entry["passed"] == call:
            return None


def _come(group: Group, what: str, text: str, timeout: float, label: str) -> list[str | None]:
    # Needs rank 0, which counts the texts it has read: if it is in a different call, the watch detects that.
    begun = _counts()
    call_log.begin(label, f"{what} of rank {group.rank}", (0,))
    number = _send(group, what, {"text": text, "begun": begun})
    key = f"{_folder(group, what)}/answers/{group.rank}/{number}"
    with call_log.waiting([0]):
        answer = read(key, timeout)
    if answer is None:
        raise DistributedError(f"{what}: rank 0 did not come within {timeout:g} s.")
    delete(key)
    result = json.loads(answer)
    with _lock:
        _pending[:] = [
            pending for pending in _pending if pending.what != what or pending.call > result["call"]
        ]
    return result["texts"]


def _send(group: Group, what: str, entry: Mapping[str, object]) -> int:
    with _lock:
        _sent[group.generation, what] += 1
        number = _sent[group.generation, what]
        post(f"{_folder(group, what)}/{group.rank}/{number}", json.dumps({**entry, "number": number}))
    return number


def _counts() -> Counts:
    log = call_log.current()
    return {} if log is None else log.counts(0)


def _beyond(rank_counts: Counts, leader_counts: Counts) -> bool:
    return any(count > leader_counts.get(name, 0) for name, count in rank_counts.items())


def hear(message: _messages.Message) -> None:
    """Handle rank 0's announcement of a call, in the message thread."""
    group, log = current(), call_log.current()
    if group is None or log is None or group.rank == 0:
        return
    with _lock:
        _pending.append(Announcement(message["what"], message["call"], message["begun"], message["steps"]))
        log.after = go_by
    go_by()


def go_by() -> None:
    """Report the calls that this rank has passed; runs again after every call that it begins, and waits."""
    group, log = current(), call_log.current()
    assert group is not None
    assert log is not None
    # The main thread and the message thread both get here.
    with _lock:
        missed = []
        for pending in _pending:
            counts = log.counts(0)
            # This rank's own texts for the same call do not pass it.
            counts.pop(f"{pending.what} of rank {group.rank}", None)
            if _beyond(counts, pending.begun) or step_agreement.asks_beyond(pending.steps, 0):
                missed.append(pending)
        for pending in missed:
            _pending.remove(pending)
        log.after = go_by if _pending else None
    for pending in missed:
        _send(group, pending.what, {"passed": pending.call})


def take_along(text: str, code: int) -> NoReturn:
    _fail_together.go(text, code=code, others=code)
    raise SystemExit(code)


def forget() -> None:
    for state in (_sent, _read, _early, _calls, _pending):
        state.clear()


def _folder(group: Group, what: str) -> str:
    return f"{PREFIX}/{group.generation}/{what}"
