"""Agreement about steps: no rank runs something new before all ranks are known to have it.

A rank with something new (a batch of a new shape, a new program) must not run it before all ranks are known
to have it: the others would enter a different collective and hang. So it sends a question to all ranks, and
they answer from their records of the last steps, even while their main threads are blocked, or once these
reach the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from ...errors import DivergenceError
from ..group import Group, ranks_text
from .calls import Begun, positions_text
from .effects import Delete, Effects, Post, Read, Send, Wait

LENGTH = 4096
"""Number of recorded steps. Dispatch is at most some dozen steps ahead of the devices, and every step
synchronizes the ranks."""

Parts = dict[str, str]
"""The compared values, by field."""


class StepRecord:
    """This rank's record of one kind of step, under the same name on all ranks.

    `line` turns a call site into a source line, only when a rank has something new.
    """

    def __init__(self, name: str, group: Group, prefix: str = "jaxpar", line: Callable[[Any], str] = str):
        self.name, self.group, self._prefix, self._line = name, group, prefix, line
        self.known: dict[Hashable, Parts] = {}
        self.record: dict[int, tuple[Parts, Any]] = {}
        """The values and the call site, by step."""
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

    def enter(self, step: int, key: Hashable, new_parts: Parts | None, call_site: Any) -> Effects[None]:
        """Record a step. `new_parts`, for a `key` that is new to this rank, are compared with all ranks."""
        # Recorded before the question is sent: two ranks that both have something new at this step would
        # otherwise wait for each other's answer.
        if new_parts is not None:
            self.known[key] = new_parts
            self.new_steps.add(step)
        self.record[step] = self.known[key], call_site
        # The record forgets one step per step, so its size is bounded without a scan.
        self.record.pop(step - LENGTH, None)
        self.new_steps.discard(step - LENGTH)
        self.first = step if self.first is None else self.first
        self.latest = step
        if self.questions:
            yield from self.answers()
        if self.problem:
            raise DivergenceError(self.problem)
        if new_parts is not None:
            yield from self.ask(step, key, self._line(call_site))

    def ask(self, step: int, key: Hashable, line: str) -> Effects[None]:
        own_parts = self.known[key]
        folder = f"{self._prefix}/{self.group.folder}/{self.name}/{step}/{self.group.me}"
        question = {"name": self.name, "group": self.group.name, "step": step, "folder": folder}
        own_answer = {"parts": own_parts, "line": line}
        yield Send("question", question | own_answer)
        others = [rank for rank in self.group.ranks if rank != self.group.me]
        self.asks_at, self.asked_step = line, step
        # Gradients that are kept need no other rank, so such a step is not in the call log. This one waits.
        yield Wait()
        answers = {}
        try:
            for rank in others:
                answers[rank] = json.loads((yield Read(f"{folder}/{rank}", rank)))
                # A rank that differs and has gone on may wait, in a call, for one that has yet to answer.
                if not answers[rank]["asked"] and difference("", {0: own_parts, 1: answers[rank]["parts"]}):
                    break
        finally:
            self.asks_at, self.asked_step = "", None
        yield Delete(folder)
        problem = self._difference(step, answers | {self.group.me: own_answer})
        if not problem:
            return
        # If the step was new to all ranks, none has run it: the group stays usable, and the key may recur.
        del self.known[key]
        entered_ranks = [rank for rank, answer in answers.items() if not answer["asked"]]
        if entered_ranks:
            self.problem = f"{problem} {_entered(entered_ranks)}"
        raise DivergenceError(self.problem or problem)

    def hear(self, message: Mapping[str, Any]) -> list[Post]:
        """Return the answer to a question; empty until this rank reaches the step."""
        self.questions.setdefault(message["step"], []).append(json.dumps(message))
        return self.answers()

    def answers(self) -> list[Post]:
        ready = [step for step in self.questions if step <= self.latest]
        return [self._answer(json.loads(text)) for step in ready for text in self.questions.pop(step)]

    def _answer(self, message: Mapping[str, Any]) -> Post:
        step = message["step"]
        is_new = step in self.new_steps
        site = self.record.get(step, self.record[self.latest])[1]
        answer = {"parts": self.at(step), "line": self._line(site), "asked": is_new}
        post = Post(f"{message['folder']}/{self.group.me}", json.dumps(answer))
        if is_new:
            return post  # the main thread sees the difference in the answers to its own question
        problem = self._difference(step, {self.group.me: answer, message["rank"]: message})
        # An exception in the message thread would be lost. `enter` raises this one, if the main thread
        # reaches its next step.
        if problem and not self.problem:
            self.problem = f"{problem} {_entered([self.group.me])}"
        return post

    def _difference(self, step: int, answers: Mapping[int, Mapping[str, Any]]) -> str:
        parts = {rank: answers[rank]["parts"] for rank in sorted(answers)}
        lines = {rank: answer["line"] for rank, answer in answers.items()}
        return difference(f"step {step} of {self.name}", parts, lines)

    def at(self, step: int) -> Parts:
        """Return this rank's parts at a step; empty if the record no longer covers it."""
        if step in self.record:
            return self.record[step][0]
        assert self.first is not None
        if self.first <= step <= self.latest - LENGTH:
            return {}
        return {"step": f"left out step {step} (it is at {self.latest}, its first was {self.first})"}


def _entered(ranks: list[int]) -> str:
    which = ranks_text(ranks)
    return f"{which[0].upper()}{which[1:]} went on into it and cannot come back: end the job."


def positions(records: Iterable[StepRecord], number: int) -> dict[str, Begun]:
    """Return this rank's last step in every record, as calls for `deadlock`."""
    return {
        f"step of {book.name}, {book.group.name}": Begun(
            book.latest,
            book.group.ranks if book.asks_at else (),
            number,
            f"step {book.latest} of {book.name}",
            book.asks_at,
        )
        for book in records
    }


def latest_steps(records: Iterable[StepRecord]) -> dict[str, int]:
    """Return this rank's last step in every record, by group and name."""
    return {f"{book.group.folder}/{book.name}": book.latest for book in records}


def asks_beyond(records: Iterable[StepRecord], steps: Mapping[str, int], rank: int) -> bool:
    """Return whether this rank waits for `rank` at a step that is not among that rank's `latest_steps`."""
    return any(
        book.asked_step is not None
        and rank in book.group.ranks
        and book.asked_step > steps.get(f"{book.group.folder}/{book.name}", -1)
        for book in records
    )


def difference(title: str, parts: dict[int, Parts], lines: Mapping[int, str] | None = None) -> str:
    """Return an error text for the first field in which ranks differ, or "".

    `lines` are the user's source lines by rank, "" where one is not known.
    """
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
            positions = positions_text({rank: line for rank, line in (lines or {}).items() if line})
            at = f" {positions[0].upper()}{positions[1:]}." if positions else ""
            return f"{title}: the ranks differ in {field}: {values}.{at}"
    return ""
