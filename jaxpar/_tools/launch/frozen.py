"""Find workers that run no Python at all: stopped by a signal, or one of their threads keeps the GIL."""

from __future__ import annotations

import contextlib
import operator
import os
import signal

from .gang import Worker

STOPPED = 5.0
"""Seconds that a worker may be stopped. JAX ends the others after 10, and one of them would be blamed."""
WITHOUT_GIL = 20.0
"""The shortest limit for a worker whose interpreter does not run: an import may keep the GIL a while."""


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
