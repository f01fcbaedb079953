"""partial_exchange: a collective call on the host that rank 0 may also make alone.

`_protocol.attendance` is the state machine.
"""

from __future__ import annotations

from typing import NoReturn

from . import _fail_together, _messages, call_log, step_agreement
from ._protocol.attendance import Attendance
from ._protocol.effects import Post, Send
from .exchange import PREFIX, post, read, run, send
from .group import Group, current, has_subgroups

_attendances: dict[int, Attendance] = {}
"""This rank's attendance, by group generation."""


def exchange_partially(what: str, text: str, timeout: float, *, label: str = "") -> list[str | None]:
    """Return the texts of all ranks that make this call, None for the others, on the ranks that make it.

    `label` is the call's public name, if it is not `what`. After `timeout` seconds DistributedError names a
    rank that has neither joined nor passed the call.
    """
    group = current()
    if group is None or group.size == 1:
        return [text]
    call = _attendance(group).exchange(what, text, label or what, timeout)
    return run(call, lambda wait: read(wait.key, timeout))


def _attendance(group: Group) -> Attendance:
    log = call_log.current()
    assert log is not None
    state = step_agreement.latest_steps, step_agreement.asks_beyond, has_subgroups
    # The main thread and the message thread may race to create it; `setdefault` keeps one.
    new = Attendance(log, group.size, f"{PREFIX}/{group.generation}", *state)
    return _attendances.setdefault(group.generation, new)


def hear(message: _messages.Message) -> None:
    """Handle rank 0's announcement of a call, or a report that a rank has passed it."""
    group, log = current(), call_log.current()
    if group is None or log is None:
        return
    attendance = _attendance(group)
    with call_log.machine:
        passed = attendance.hear(message)
        log.after = go_by if attendance.pending else None
    perform(passed)


def go_by() -> None:
    """Report the calls that this rank has passed; runs again after every call that it begins, and waits."""
    group, log = current(), call_log.current()
    assert group is not None
    assert log is not None
    attendance = _attendance(group)
    with call_log.machine:
        passed = attendance.go_by()
        log.after = go_by if attendance.pending else None
    perform(passed)


def perform(passed: list[Post | Send]) -> None:
    for effect in passed:
        if isinstance(effect, Post):
            post(*effect)
        else:
            send(effect.kind, **effect.fields)


def take_along(text: str, code: int) -> NoReturn:
    _fail_together.go(text, code=code, others=code)
    raise SystemExit(code)


def forget() -> None:
    _attendances.clear()
