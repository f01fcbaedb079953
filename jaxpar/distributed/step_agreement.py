"""Check that all ranks do the same at each step.

A rank with something new (a batch of a new shape, a new program) must not run it before all ranks are known
to have it: the others would enter a different collective and hang. So it sends a question to all ranks, and
their message threads answer from their records of the last steps, even while the main threads are blocked, or
once these reach the step. Ranks with nothing new pay for one dict entry.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable, Mapping

from ..errors import DistributedError, DivergenceError
from . import _messages, call_log
from .exchange import PREFIX, delete, post, ranks_text, read
from .group import Group, current, subgroup

LENGTH = 4096
"""Number of recorded steps. Dispatch is at most some dozen steps ahead of the devices, and every step
synchronizes the ranks."""
REMIND = 30.0
"""Seconds between warnings about a rank that has not answered."""

Parts = dict[str, str]
"""The compared values, by field."""

_log = logging.getLogger("jaxpar")
_ledgers: dict[tuple[str, str], Ledger] = {}


class Ledger:
    """This rank's record of one kind of step, under the same name on all ranks."""

    def __init__(self, name: str, group: Group):
        self.name, self.group = name, group
        self.known: dict[Hashable, Parts] = {}
        self.record: dict[int, Parts] = {}
        self.new_steps: set[int] = set()
        """Steps at which this rank has something new and waits for all answers."""
        self.first: int | None = None
        self.latest = -1
        self.asks_at = ""
        """While this rank waits for answers: the user's source line that made the step."""
        self.asked_step: int | None = None
        """While this rank waits for answers: the step."""
        self.questions: dict[int, list[str]] = {}
        self.problem = ""
        self.lock = threading.Lock()

    def check(self, step: int, key: Hashable, parts: Callable[[], Parts]) -> None:
        """Record a step; if its `key` is new to this rank, wait until all ranks confirm its `parts`."""
        # Recorded before the question is sent: two ranks that both have something new at this step would
        # otherwise wait for each other's answer.
        new = key not in self.known
        if new:
            self.known[key] = parts()
            self.new_steps.add(step)
        self.record[step] = self.known[key]
        # The record forgets one step per step, so its size is bounded without a scan.
        self.record.pop(step - LENGTH, None)
        self.new_steps.discard(step - LENGTH)
        self.first = step if self.first is None else self.first
        self.latest = step
        if self.questions:
            self._answer_waiting()
        if self.problem:
            raise DivergenceError(self.problem)
        if new:
            self._ask(step, key)

    # -------------------------------------------------------------------------------------- asking

    def _ask(self, step: int, key: Hashable) -> None:
        own_parts = self.known[key]
        folder = f"{PREFIX}/{self.group.folder}/{self.name}/{step}/{self.group.me}"
        _messages.send(
            "question", name=self.name, group=self.group.name, step=step, folder=folder, parts=own_parts
        )
        # Waits for all answers, even after one that differs: the error lists every rank's value.
        others = [rank for rank in self.group.ranks if rank != self.group.me]
        self.asks_at, self.asked_step = call_log.caller(), step
        # Gradients that are kept need no other rank, so such a step is not in the call log. This one waits.
        call_log.waits()
        try:
            answers = {rank: json.loads(self._wait(folder, rank, step)) for rank in others}
        finally:
            self.asks_at, self.asked_step = "", None
        delete(folder)
        parts_by_rank = {rank: answer["parts"] for rank, answer in answers.items()} | {
            self.group.me: own_parts
        }
        problem = difference(f"step {step} of {self.name}", dict(sorted(parts_by_rank.items())))
        if not problem:
            return
        # If the step was new to all ranks, none has run it: the group stays usable, and the key may recur.
        del self.known[key]
        entered_ranks = [rank for rank, answer in answers.items() if not answer["asked"]]
        if entered_ranks:
            self.problem = f"{problem} {_entered(entered_ranks)}"
        raise DivergenceError(self.problem or problem)

    def _wait(self, folder: str, rank: int, step: int) -> str:
        waited = 0.0
        while waited < self.group.timeout:
            slice_ = min(REMIND, self.group.timeout - waited)
            with call_log.waiting([rank]):
                text = read(f"{folder}/{rank}", slice_)
            if text is not None:
                return text
            waited += slice_
            _log.warning("rank %s waits at step %s of %s for rank %s.", self.group.me, step, self.name, rank)
        raise DistributedError(
            f"{ranks_text([rank])} did not come to step {step} of {self.name} within "
            f"{self.group.timeout:g} s, where rank {self.group.me} has something for the first time."
        )

    # ----------------------------------------------------------------------------------- answering

    def hear(self, message: _messages.Message) -> None:
        """Answer a question, in the message thread, now or once this rank reaches the step."""
        with self.lock:
            self.questions.setdefault(message["step"], []).append(json.dumps(message))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        # Both threads call this. The one that pops a question answers it.
        with self.lock:
            ready = [step for step in self.questions if step <= self.latest]
            texts = [text for step in ready for text in self.questions.pop(step)]
        for text in texts:
            self._answer(json.loads(text))

    def _answer(self, message: _messages.Message) -> None:
        step = message["step"]
        own_parts, is_new = self._at(step), step in self.new_steps
        post(f"{message['folder']}/{self.group.me}", json.dumps({"parts": own_parts, "asked": is_new}))
        if is_new:
            return  # the main thread sees the difference in the answers to its own question
        both = {self.group.me: own_parts, message["rank"]: message["parts"]}
        problem = difference(f"step {step} of {self.name}", both)
        # An exception in the message thread would be lost. `check` raises this one, if the main thread
        # reaches its next step.
        if problem and not self.problem:
            self.problem = f"{problem} {_entered([self.group.me])}"

    def _at(self, step: int) -> Parts:
        """Return this rank's parts at a step; empty if the record no longer covers it."""
        if step in self.record:
            return self.record[step]
        assert self.first is not None
        if self.first <= step <= self.latest - LENGTH:
            return {}
        return {"step": f"left out step {step} (it is at {self.latest}, its first was {self.first})"}


def _entered(ranks: list[int]) -> str:
    which = ranks_text(ranks)
    return f"{which[0].upper()}{which[1:]} went on into it and cannot come back: end the job."


def ledger(name: str, group: Group | None = None) -> Ledger | None:
    """Return a ledger of the group (default: the default group), or None without a second rank."""
    group = group or current()
    if group is None or group.size == 1:
        return None
    # The main thread and the message thread may race to create it; `setdefault` keeps one ledger.
    return _ledgers.setdefault((group.folder, name), Ledger(name, group))


def positions(number: int) -> dict[str, call_log.Begun]:
    """Return this rank's last step in every ledger, as calls for `call_log.deadlock`."""
    return {
        f"step of {name}, {book.group.name}": call_log.Begun(
            book.latest,
            book.group.ranks if book.asks_at else (),
            number,
            f"step {book.latest} of {name}",
            book.asks_at,
        )
        for (_, name), book in list(_ledgers.items())
    }


def latest_steps() -> dict[str, int]:
    """Return this rank's last step in every ledger, by group and name."""
    return {"/".join(key): book.latest for key, book in list(_ledgers.items())}


def asks_beyond(steps: Mapping[str, int], rank: int) -> bool:
    """Return whether this rank waits for `rank` at a step that is not among that rank's `latest_steps`."""
    return any(
        book.asked_step is not None
        and rank in book.group.ranks
        and book.asked_step > steps.get("/".join(key), -1)
        for key, book in list(_ledgers.items())
    )


def hear(message: _messages.Message) -> None:
    """Pass a question to its ledger, which is created if the question arrives first."""
    group = subgroup(message.get("group", ""))
    if group is not None and message["rank"] != group.me:
        step_ledger = ledger(message["name"], group)
        if step_ledger is not None:
            step_ledger.hear(message)


def forget() -> None:
    _ledgers.clear()


def difference(title: str, parts: dict[int, Parts]) -> str:
    """Return an error text for the first field in which ranks differ, or ""."""
    parts = {rank: fields for rank, fields in parts.items() if fields}
    fields = dict.fromkeys(field for fields in parts.values() for field in fields)
    for field in fields:
        ranks: dict[str, list[int]] = {}
        for rank in sorted(parts):
            ranks.setdefault(parts[rank].get(field, "nothing"), []).append(rank)
        if len(ranks) > 1:
            values = ", ".join(
                f"{ranks_text(r)} ha{'ve' if len(r) > 1 else 's'} {v}" for v, r in ranks.items()
            )
            return f"{title}: the ranks differ in {field}: {values}."
    return ""
