"""Check that all ranks do the same at each step; `_protocol.steps` is the state machine.

Ranks with nothing new pay for one dict entry. The message threads answer the questions of those that have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping

from ..errors import DistributedError
from . import _messages, call_log
from ._protocol import steps
from ._protocol.effects import Read
from ._protocol.steps import LENGTH as LENGTH
from ._protocol.steps import Parts, StepRecord
from ._protocol.steps import difference as difference
from .exchange import post, ranks_text, read, run
from .group import Group, current, subgroup

REMIND = 30.0
"""Seconds between warnings about a rank that has not answered."""

_log = logging.getLogger("jaxpar")
_ledgers: dict[tuple[str, str], Ledger] = {}


class Ledger(StepRecord):
    """This rank's record of one kind of step, with the transport."""

    def check(self, step: int, key: Hashable, parts: Callable[[], Parts]) -> None:
        """Record a step; if its `key` is new to this rank, wait until all ranks confirm its `parts`."""
        is_new = key not in self.known
        new_parts = parts() if is_new else None
        call = self.enter(step, key, new_parts, call_log.call_site())
        run(call, lambda wait: self._wait(wait, step))

    def _wait(self, wait: Read, step: int) -> str:
        waited = 0.0
        while waited < self.group.timeout:
            slice_ = min(REMIND, self.group.timeout - waited)
            text = read(wait.key, slice_)
            if text is not None:
                return text
            waited += slice_
            me = self.group.me
            _log.warning("rank %s waits at step %s of %s for rank %s.", me, step, self.name, wait.rank)
        raise DistributedError(
            f"{ranks_text([wait.rank])} did not come to step {step} of {self.name} within "
            f"{self.group.timeout:g} s, where rank {self.group.me} has something for the first time."
        )


def ledger(name: str, group: Group | None = None) -> Ledger | None:
    """Return a ledger of the group (default: the default group), or None without a second rank."""
    group = group or current()
    if group is None or group.size == 1:
        return None
    # The main thread and the message thread may race to create it; `setdefault` keeps one ledger.
    return _ledgers.setdefault((group.folder, name), Ledger(name, group, line=call_log.line))


def positions(number: int) -> dict[str, call_log.Begun]:
    """Return this rank's last step in every ledger, as calls for `call_log.deadlock`."""
    return steps.positions(list(_ledgers.values()), number)


def latest_steps() -> dict[str, int]:
    """Return this rank's last step in every ledger, by group and name."""
    return steps.latest_steps(list(_ledgers.values()))


def asks_beyond(latest: Mapping[str, int], rank: int) -> bool:
    """Return whether this rank waits for `rank` at a step that is not among that rank's `latest_steps`."""
    return steps.asks_beyond(list(_ledgers.values()), latest, rank)


def hear(message: _messages.Message) -> None:
    """Pass a question to its ledger, which is created if the question arrives first."""
    group = subgroup(message.get("group", ""))
    if group is not None and message["rank"] != group.me:
        step_ledger = ledger(message["name"], group)
        if step_ledger is not None:
            with call_log.machine:
                answers = step_ledger.hear(message)
            for answer in answers:
                post(*answer)


def forget() -> None:
    _ledgers.clear()
