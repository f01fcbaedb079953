"""One attempt, from the start of its gang to the end of its last process: how it ended, and because of whom.

torchrun looks at exit codes every 0.1 s. They cannot show a rank that hangs, and of ranks that ended together
they do not tell which was the cause; beats, times of exceptions and stacks do.
"""

from __future__ import annotations

import queue
import signal
import time
from dataclasses import dataclass

from .gang import Gang, Worker
from .settings import DONE, EXCEPTION, PREEMPTED, STALLED, LaunchSettings
from .stacks import frames, waits

Signals = queue.SimpleQueue[int]
"""What signal handlers put into: SimpleQueue is the one queue of Python that a handler may use."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK = 0.05
"""Seconds between two looks, unless the end of a child asks for one earlier."""
WARM, START = 3, 10
"""Until every rank has beaten WARM times, it may be silent for START times `step_timeout`: it compiles."""
LAST_WORDS = 1.0
"""Seconds that a worker has to show where it hangs, or to end after its exception."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: an exit code, the rank to blame, and the signal that asked to stop."""

    code: int
    cause: Worker | None = None
    stopped: int | None = None
    silent: float = 0
    """Seconds for which the rank to blame had made no step, if that was the reason."""


class Pulse:
    """When each worker last made a step."""

    def __init__(self, workers: list[Worker], timeout: float | None, now: float) -> None:
        self.workers, self.timeout = workers, timeout
        self.last_beats = {worker.rank: (0, now) for worker in workers}
        self.complete: float | None = None
        """When all were warm. Until then the first ones may have waited for the last one."""

    def silent(self, now: float) -> tuple[Worker, float] | None:
        """The worker that stopped first, and for how long it has; None while none is silent for too long."""
        started = [worker for worker in self.workers if worker.beats]
        for worker in started:
            if self.last_beats[worker.rank][0] != worker.beats:
                self.last_beats[worker.rank] = worker.beats, now
        if self.complete is None and all(worker.beats >= WARM for worker in self.workers):
            self.complete = now
        if self.timeout is None:
            return None
        limit = START * self.timeout if self.complete is None else self.timeout
        if not any(worker.code is None and self._silence(worker, now) > limit for worker in started):
            return None
        # Ranks that wait for another one have made as many steps as that one, or more.
        suspects = [worker for worker in self.workers if worker.code is None or worker.left_early]
        first = min(suspects, key=lambda worker: (not worker.left_early, self.last_beats[worker.rank]))
        return first, self._silence(first, now)

    def _silence(self, worker: Worker, now: float) -> float:
        return now - max(self.last_beats[worker.rank][1], self.complete or 0)


class GangWatch:
    """Looks at a gang until it has ended."""

    def __init__(self, gang: Gang, settings: LaunchSettings, signals: Signals) -> None:
        self.gang, self.settings, self.signals = gang, settings, signals
        self.pulse = Pulse(gang.workers, settings.step_timeout, time.monotonic())
        self.stopped: int | None = None
        self.deadline = float("inf")

    def run(self) -> AttemptEnd:
        """Waits for the end. Kills the gang if a rank fails, is silent, or does not leave when asked to."""
        try:
            while (end := self._look()) is None:
                pass
        finally:
            self.gang.kill()
            self.gang.close()
        return end

    def _look(self) -> AttemptEnd | None:
        self._listen()
        now = time.monotonic()
        failed = [worker for worker in self.gang.look() if worker.code not in (DONE, PREEMPTED)]
        if failed and not self.stopped:
            return self._failure(failed)
        if not self.gang.running:
            return self._ended()
        if now > self.deadline:
            return self._overdue()
        preempted = [worker for worker in self.gang.workers if worker.code == PREEMPTED]
        if preempted:
            self.deadline = min(self.deadline, now + self.settings.grace)
        if not self.stopped and not preempted and (stall := self.pulse.silent(now)):
            return self._stall(*stall)
        return None

    def _listen(self) -> None:
        """Sleeps until something happens."""
        try:
            number = self.signals.get(timeout=LOOK)
        except queue.Empty:
            return
        if number not in STOPS:
            return
        if self.stopped:
            self.deadline = 0  # asked twice
        else:
            self.stopped = number
            self.deadline = time.monotonic() + self.settings.grace
            self.gang.signal(signal.SIGTERM)

    def _failure(self, failed: list[Worker]) -> AttemptEnd:
        """Blames a worker that left in silence, or whose exception came first, not who ended first."""
        early = [worker for worker in self.gang.workers if worker.left_early]
        if early:
            return AttemptEnd(EXCEPTION, early[0])
        raising = [worker for worker in self.gang.running if worker.raised]
        cause = min(failed + raising, key=Worker.ending)
        end = time.monotonic() + LAST_WORDS
        while cause.code is None and time.monotonic() < end:
            self.gang.look()
            time.sleep(0.01)
        code = EXCEPTION if cause.code is None else cause.code
        return AttemptEnd(code if code > 0 else 128 - code, cause)

    def _stall(self, cause: Worker, silent: float) -> AttemptEnd:
        if cause.left_early:
            return AttemptEnd(EXCEPTION, cause)
        self.gang.signal(signal.SIGUSR1)
        time.sleep(LAST_WORDS)
        # If every step ends with all ranks waiting for each other, only the stacks tell them apart.
        equal = [worker for worker in self.gang.running if worker.beats == cause.beats]
        busy = [worker for worker in equal if not waits(frames(self.gang.output.last_words(worker.rank)))]
        if busy and cause not in busy:
            cause = busy[0]
        return AttemptEnd(STALLED, cause, silent=silent)

    def _ended(self) -> AttemptEnd:
        codes = {worker.code for worker in self.gang.workers}
        if codes == {DONE}:
            return AttemptEnd(DONE)
        if codes <= {DONE, PREEMPTED}:
            return AttemptEnd(PREEMPTED, stopped=self.stopped)
        assert self.stopped is not None
        return AttemptEnd(128 + self.stopped, stopped=self.stopped)

    def _overdue(self) -> AttemptEnd:
        """Not all left in time after they were asked to stop, or after a peer was preempted."""
        if self.stopped:
            return AttemptEnd(128 + self.stopped, stopped=self.stopped)
        return AttemptEnd(PREEMPTED)
