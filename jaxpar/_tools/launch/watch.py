"""Watch one attempt until its last process has ended, and determine how it ended and which rank caused it."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import queue
import signal
import time

from .gang import Gang, Worker
from .output import frames, waits
from .settings import DONE, EXCEPTION, PREEMPTED, STALLED, LaunchSettings

Signals = queue.SimpleQueue[int]
"""Filled by signal handlers: SimpleQueue is Python's only queue whose `put` is reentrant."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK = 0.05
"""Seconds between two polls, unless a child ends earlier."""
WARM, START = 3, 10
"""Until every rank has beaten WARM times, the limit is START times `step_timeout`, because ranks compile."""
LAST_WORDS = 1.0
"""Seconds for a worker to print its stack, or to end after its exception."""
STOPPED = 5.0
"""Seconds that a worker may be stopped. JAX ends the others after 10, and one of them would be blamed."""
WITHOUT_GIL = 20.0
"""The shortest limit for a worker whose interpreter does not run: an import may keep the GIL a while."""


@dataclasses.dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: the exit code, the causing rank, and the signal that requested a stop."""

    code: int
    cause: Worker | None = None
    stopped: int | None = None
    stall: str = ""
    """What the causing rank did not do, and for how long, if that was the reason."""


class Pulse:
    def __init__(self, workers: list[Worker], timeout: float | None, now: float) -> None:
        self.workers, self.timeout = workers, timeout
        self.last_beats = {worker.rank: (0, now) for worker in workers}
        self.complete: float | None = None
        """When all ranks were warm. Until then fast ranks may have waited for the slowest."""

    def silent(self, now: float) -> tuple[Worker, float] | None:
        """Return the worker that stopped first, and for how long; None while no worker exceeds the limit."""
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
        # A waiting rank has made at least as many steps as the rank that it waits for.
        suspects = [worker for worker in self.workers if worker.code is None or worker.left_early]
        # A rank that exited early comes before hanging ones: the others wait for it.
        first = min(suspects, key=lambda worker: (not worker.left_early, self.last_beats[worker.rank]))
        return first, self._silence(first, now)

    def _silence(self, worker: Worker, now: float) -> float:
        return now - max(self.last_beats[worker.rank][1], self.complete or 0)


class FreezeWatch:
    """Compares the counters of the workers' pulse threads, and asks the kernel which ones are stopped."""

    def __init__(self, workers: list[Worker], step_timeout: float | None, now: float) -> None:
        self.workers = workers
        self.limit = float("inf") if step_timeout is None else max(step_timeout, WITHOUT_GIL)
        self.pulses = {worker.rank: (0, now) for worker in workers}
        self.running = {worker.rank: now for worker in workers}
        """When a worker was last seen not to be stopped."""

    def look(self, now: float) -> tuple[Worker, str] | None:
        """Return the worker that has been frozen for longest, if one exceeds its limit, and how."""
        freezes = []
        for worker in self.workers:
            if worker.code is not None or worker.done:  # the interpreter takes itself down
                continue
            if worker.pulses != self.pulses[worker.rank][0]:
                self.pulses[worker.rank] = worker.pulses, now
            silence = now - self.pulses[worker.rank][1]
            number = _stopped(worker.process.pid)
            if number is None:
                self.running[worker.rank] = now
                if worker.pulses and silence > self.limit:
                    freezes.append((silence, worker, "has run no Python"))
            elif (seconds := now - self.running[worker.rank]) > STOPPED:
                freezes.append((seconds, worker, f"was stopped by {signal.Signals(number).name}"))
        if not freezes:
            return None
        seconds, worker, text = max(freezes, key=operator.itemgetter(0))
        return worker, f"{text} for {seconds:.1f} s"


def _stopped(pid: int) -> int | None:
    """Return the signal that has stopped a child process, None while it runs."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None
    with contextlib.suppress(ChildProcessError):  # it ended a moment ago
        # WNOWAIT keeps the answer for the next call, until the process continues.
        stop = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return None if stop is None else stop.si_status
    return None


class GangWatch:
    def __init__(self, gang: Gang, settings: LaunchSettings, signals: Signals) -> None:
        self.gang, self.settings, self.signals = gang, settings, signals
        self.pulse = Pulse(gang.workers, settings.step_timeout, time.monotonic())
        self.freezes = FreezeWatch(gang.workers, settings.step_timeout, time.monotonic())
        self.stopped: int | None = None
        self.deadline = float("inf")

    def run(self) -> AttemptEnd:
        """Wait for the end. Kill the gang if a rank fails, hangs, or does not exit after a stop signal."""
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
        # Preempted workers have saved their state, so their exit is not a failure.
        failed = [worker for worker in self.gang.look() if worker.code not in (DONE, PREEMPTED)]
        if failed and not self.stopped:
            return self._failure(failed)
        if not self.gang.running or now > self.deadline:
            return self._ended()
        preempted = [worker for worker in self.gang.workers if worker.code == PREEMPTED]
        if preempted:
            self.deadline = min(self.deadline, now + self.settings.grace)
        if self.stopped or preempted:
            return None
        if freeze := self.freezes.look(now):
            return self._stall(*freeze)
        if silence := self.pulse.silent(now):
            return self._silence(*silence)
        return None

    def _listen(self) -> None:
        try:
            number = self.signals.get(timeout=LOOK)
        except queue.Empty:
            return
        if number not in STOPS:
            return
        if self.stopped:
            self.deadline = 0  # a second signal: do not wait any longer
        else:
            self.stopped = number
            self.deadline = time.monotonic() + self.settings.grace
            self.gang.signal(signal.SIGTERM)

    def _failure(self, failed: list[Worker]) -> AttemptEnd:
        """Blame a worker that exited early without an error, or whose exception came first."""
        # The rank that ended first need not be the cause: it may have lost a peer that still prints.
        end = time.monotonic() + LAST_WORDS
        while True:
            early = [worker for worker in self.gang.workers if worker.left_early]
            if early:
                return AttemptEnd(EXCEPTION, early[0])
            # Ranks end when one raises, so the rank whose error it raised may not have raised itself.
            blamed = {worker.blamed for worker in self.gang.workers}
            running = (worker for worker in self.gang.running if worker.raised or worker.rank in blamed)
            cause = min(
                [*failed, *running],
                key=lambda worker: (worker.ending()[0], worker.rank not in blamed, worker.ending()),
            )
            expected = self.gang.running if cause.lost_peer else cause.code is None
            if not expected or time.monotonic() > end:
                break
            time.sleep(0.01)
            failed += [worker for worker in self.gang.look() if worker.code not in (DONE, PREEMPTED)]
        code = EXCEPTION if cause.code is None else cause.code
        return AttemptEnd(code if code > 0 else 128 - code, cause)

    def _silence(self, cause: Worker, seconds: float) -> AttemptEnd:
        if cause.left_early:
            return AttemptEnd(EXCEPTION, cause)
        end = self._stall(cause, f"made no step for {seconds:.1f} s")
        # If every step ends with a collective, all ranks have the same count, and only stacks distinguish
        # them.
        equal = [worker for worker in self.gang.running if worker.beats == cause.beats]
        busy = [worker for worker in equal if not waits(frames(self.gang.output.last_words(worker.rank)))]
        return dataclasses.replace(end, cause=busy[0]) if busy and cause not in busy else end

    def _stall(self, cause: Worker, text: str) -> AttemptEnd:
        self.gang.signal(signal.SIGUSR1)
        time.sleep(LAST_WORDS)
        return AttemptEnd(STALLED, cause, stall=text)

    def _ended(self) -> AttemptEnd:
        codes = {worker.code for worker in self.gang.workers}
        if codes == {DONE}:
            return AttemptEnd(DONE)
        # Without a signal, overdue workers did not exit in time after a peer's preemption.
        if codes <= {DONE, PREEMPTED} or not self.stopped:
            return AttemptEnd(PREEMPTED, stopped=self.stopped)
        return AttemptEnd(128 + self.stopped, stopped=self.stopped)
