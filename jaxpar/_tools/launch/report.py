"""The supervisor's messages: which rank failed first, how each rank ended, and that rank's last lines."""

from __future__ import annotations

import re
import signal
import time

from .gang import Gang, Worker
from .output import frames
from .settings import DONE, PREEMPTED, LaunchSettings
from .watch import AttemptEnd

RANK = r"(\[rank \d+\] )?"
TRACEBACK = re.compile(RANK + r"(Traceback \(most recent call last\):|Fatal Python error:)")
CHAIN = re.compile(RANK + r"(During handling of the above|The above exception was the direct cause)")
SHOWN, WITHOUT_TRACEBACK = 60, 20


def between(gang: Gang, outcome: AttemptEnd, counted: int, settings: LaunchSettings, delay: float) -> str:
    if outcome.code == PREEMPTED:
        return f"preempted{_at(gang)}; restarting for free in {delay:g} s"
    return f"{_headline(gang, outcome)}; restart {counted} of {settings.max_restarts} in {delay:g} s"


def last(gang: Gang, outcome: AttemptEnd, reason: str) -> str:
    """Return the final report: a table of all ranks, and the last lines of the one that failed first."""
    if outcome.code == DONE:
        return ""
    cause = outcome.cause
    if cause is None:
        why = f"stopped by {signal.Signals(outcome.stopped).name}" if outcome.stopped else "preempted"
        return "\n".join([f"{why}{_at(gang)}; {reason or f'exit code {outcome.code}'}", *_table(gang)])
    if outcome.stall:
        details = _stalled(gang, cause)
    elif excerpt := last_words(gang.output.last_words(cause.rank)):
        details = [f"Rank {cause.rank}, the end of its output:", "", *excerpt]
    else:
        details = [f"Rank {cause.rank} printed nothing."]
    return "\n".join([f"{_headline(gang, outcome)}; {reason}", *_table(gang, cause), "", *details])


def _stalled(gang: Gang, cause: Worker) -> list[str]:
    stacks = {worker: frames(gang.output.last_words(worker.rank)) for worker in gang.workers if worker.killed}
    others = [(worker.rank, stack) for worker, stack in stacks.items() if worker is not cause and stack]
    waiting = [f"Rank {rank} stands at {stack[0].strip()}" for rank, stack in others]
    stack_of_cause = stacks.get(cause) or ["  nowhere in Python: it did not answer"]
    return [
        *waiting,
        *[""] * bool(waiting),
        f"Rank {cause.rank} stands at (innermost first):",
        "",
        *stack_of_cause,
    ]


def ending(worker: Worker) -> str:
    code = worker.code
    if code is None:
        return "runs"
    if code >= 0:
        return f"exit code {code}" + " in the middle of its script" * worker.left_early
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, by jaxpar launch" if worker.killed else name


def last_words(lines: list[str]) -> list[str]:
    """Return the last traceback with its chained causes, or the last lines without a traceback."""
    starts = [i for i, line in enumerate(lines) if TRACEBACK.match(line)]
    if not starts:
        return lines[-WITHOUT_TRACEBACK:]
    start = starts.pop()
    while starts and any(CHAIN.match(line) for line in lines[max(start - 3, 0) : start]):
        start = starts.pop()
    excerpt = lines[start:]
    half = SHOWN // 2  # in a deep recursion only the ends are informative
    return excerpt if len(excerpt) <= SHOWN else [*excerpt[:half], "...", *excerpt[-half:]]


def _headline(gang: Gang, outcome: AttemptEnd) -> str:
    cause = outcome.cause
    assert cause is not None
    where = f", after step {cause.step}" if cause.step >= 0 else ""
    if outcome.stall:
        return f"rank {cause.rank} {outcome.stall}{where}"
    after = cause.ended - gang.born
    return f"rank {cause.rank} failed first, {after:.1f} s after the start{where}: {ending(cause)}"


def _at(gang: Gang) -> str:
    step = max(worker.step for worker in gang.workers)
    return f" at step {step}" if step >= 0 else ""


def _table(gang: Gang, cause: Worker | None = None) -> list[str]:
    """Return a row for each rank: first the cause, then the others in the order in which they ended."""
    rows = [("rank", "pid", "time", "after", "step", "ended")]
    for worker in sorted(gang.workers, key=lambda w: (w is not cause, w.ended)):
        clock = time.strftime("%H:%M:%S", time.localtime(worker.ended))
        step = str(worker.step) if worker.step >= 0 else "-"
        after = f"{worker.ended - gang.born:.2f} s"
        rows.append((str(worker.rank), str(worker.process.pid), clock, after, step, ending(worker)))
    # The last column is free text and stays unpadded.
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  " + "  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=False)), row[5]])
        for row in rows
    ]
