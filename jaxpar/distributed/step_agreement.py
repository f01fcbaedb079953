"""Do all ranks do the same at each step? A record of the last steps, and a question to the others.

A rank that has something for the first time (a batch of another shape, another program) must not run it
before it knows that the others have it too: to them nothing may be new, so they go straight into the
collective and wait there for ever. So every rank keeps a record of its last steps. A rank that has
something new sends a question to all. Their message threads answer from the record, whatever the main
threads are doing, or as soon as these get to that step. Ranks to which nothing is new ask nothing and pay
for one dict entry. torch compares collectives only if TORCH_DISTRIBUTED_DEBUG=DETAIL is set, and then every
one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable

from ..errors import DistributedError, DivergenceError
from . import _messages, whereabouts
from .exchange import PREFIX, delete, put, ranks_text, take
from .group import Group, current, subgroup

LENGTH = 4096
"""Steps that are remembered. A rank's Python is some dozen steps ahead of its devices at most, and ranks wait
for each other in every step."""
REMIND = 30.0
"""Seconds between two warnings about a rank that has not answered."""

Parts = dict[str, str]
"""What is compared, by field."""

_log = logging.getLogger("jaxpar")
_ledgers: dict[tuple[str, str], Ledger] = {}


class Ledger:
    """This rank's record of one kind of steps, which has the same name on all ranks."""

    def __init__(self, name: str, group: Group):
        self.name, self.group = name, group
        self.known: dict[Hashable, Parts] = {}
        self.record: dict[int, Parts] = {}
        self.new_steps: set[int] = set()
        """The steps at which this rank has something new, and so does not go on before all have answered."""
        self.first: int | None = None
        self.latest = -1
        self.asks_at = ""
        """While this rank waits for answers: the line of the user's that made the step."""
        self.questions: dict[int, list[str]] = {}
        self.problem = ""
        self.lock = threading.Lock()

    def check(self, step: int, key: Hashable, parts: Callable[[], Parts]) -> None:
        """Returns when all ranks are known to have the same at this step, or at once if it is not new here.

        Args:
          step: its number, growing, the same on all ranks.
          key: stands for the parts and is quick to compare.
          parts: makes what is compared; called once for each key.

        Raises:
          DivergenceError: another rank has something else. DistributedError: ranks did not get to this
            step within the group's timeout.
        """
        # Recorded before anything is asked or answered: two ranks that both have something new at this step
        # would otherwise wait for each other's answer.
        new = key not in self.known
        if new:
            self.known[key] = parts()
            self.new_steps.add(step)
        self.record[step] = self.known[key]
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
        # All answers are waited for, also after one that differs: the error names every rank's value.
        others = [rank for rank in self.group.ranks if rank != self.group.me]
        self.asks_at = whereabouts.caller()
        try:
            answers = {rank: json.loads(self._wait(folder, rank, step)) for rank in others}
        finally:
            self.asks_at = ""
        delete(folder)
        parts_by_rank = {rank: answer["parts"] for rank, answer in answers.items()} | {
            self.group.me: own_parts
        }
        problem = difference(f"step {step} of {self.name}", dict(sorted(parts_by_rank.items())))
        if not problem:
            return
        # Nobody has run what was refused, if it was new to all: the group goes on, and this may come again.
        del self.known[key]
        entered_ranks = [rank for rank, answer in answers.items() if not answer["asked"]]
        if entered_ranks:
            self.problem = f"{problem} {_entered(entered_ranks)}"
        raise DivergenceError(self.problem or problem)

    def _wait(self, folder: str, rank: int, step: int) -> str:
        waited = 0.0
        while waited < self.group.timeout:
            slice_ = min(REMIND, self.group.timeout - waited)
            with whereabouts.waiting([rank]):
                text = take(f"{folder}/{rank}", slice_)
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
        """Answers a question now or, if this rank is not at that step yet, when it gets there.

        Runs in the thread of the messages.
        """
        with self.lock:
            self.questions.setdefault(message["step"], []).append(json.dumps(message))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        # Called by both threads. Whichever takes a question out of the dict answers it.
        with self.lock:
            ready = [step for step in self.questions if step <= self.latest]
            texts = [text for step in ready for text in self.questions.pop(step)]
        for text in texts:
            self._answer(json.loads(text))

    def _answer(self, message: _messages.Message) -> None:
        step = message["step"]
        own_parts, is_new = self._at(step), step in self.new_steps
        put(f"{message['folder']}/{self.group.me}", json.dumps({"parts": own_parts, "asked": is_new}))
        if is_new:
            return  # the main thread hears it from the answers to its own question
        both = {self.group.me: own_parts, message["rank"]: message["parts"]}
        problem = difference(f"step {step} of {self.name}", both)
        # This thread has nobody to raise it to; `check` does, if the main thread ever gets there.
        if problem and not self.problem:
            self.problem = f"{problem} {_entered([self.group.me])}"

    def _at(self, step: int) -> Parts:
        """What this rank had at a step; empty if that was too long ago to be known."""
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
    """The group's ledger of that name, by default the default group's; None if there is no other rank."""
    group = group or current()
    if group is None or group.size == 1:
        return None
    # The main thread or the thread of the messages may be the first to ask; setdefault keeps one ledger.
    return _ledgers.setdefault((group.folder, name), Ledger(name, group))


def positions(number: int) -> dict[str, whereabouts.Begun]:
    """How far this rank is in every ledger. Where it waits for answers, it needs the others to come as far.

    `number` stands for the order among the calls that this rank has begun.
    """
    return {
        f"step of {name}, {book.group.name}": whereabouts.Begun(
            book.latest,
            book.group.ranks if book.asks_at else (),
            number,
            f"step {book.latest} of {name}",
            book.asks_at,
        )
        for (_, name), book in list(_ledgers.items())
    }


def hear(message: _messages.Message) -> None:
    """Gives a question to its ledger, which is made now if the question comes first."""
    group = subgroup(message.get("group", ""))
    if group is not None and message["rank"] != group.me:
        step_ledger = ledger(message["name"], group)
        if step_ledger is not None:
            step_ledger.hear(message)


def forget() -> None:
    _ledgers.clear()


def difference(title: str, parts: dict[int, Parts]) -> str:
    """The first field in which ranks differ, with their values; "" if there is none."""
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
