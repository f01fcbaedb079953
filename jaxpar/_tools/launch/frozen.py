"""Find workers that run no Python at all: stopped by a signal, or one of their threads keeps the GIL."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from .gang import Worker

STOPPED = 5.0
"""Seconds that a worker may be stopped. JAX ends the others after 10, and one of them would be blamed."""
WITHOUT_GIL = 20.0
"""The shortest limit for a worker whose interpreter does not run: an import may keep the GIL a while."""


class Freeze(NamedTuple):
    """A worker that does not run, for how many seconds, and the text of the report."""

    worker: Worker
    seconds: float
    text: str


class FreezeWatch:
    """Compares the counters of the workers' pulse threads, and asks the kernel which ones are stopped."""

    def __init__(self, workers: list[Worker], step_timeout: float | None, now: float) -> None:
        self.workers = workers
        self.limit = float("inf") if step_timeout is None else max(step_timeout, WITHOUT_GIL)
        self.pulses = {worker.rank: (0, now) for worker in workers}
        self.running = {worker.rank: now for worker in workers}
        """When a worker was last seen not to be stopped."""

    def look(self, now: float) -> Freeze | None:
        """Return the worker that has been frozen for longest, if one exceeds its limit."""
        freezes = []
        for worker in self.workers:
            if worker.code is not None or worker.done:  # the interpreter takes itself down
                continue
            if worker.pulses != self.pulses[worker.rank][0]:
                self.pulses[worker.rank] = worker.pulses, now
            number = _stopped(worker)
            if number is None:
                self.running[worker.rank] = now
                silence = now - self.pulses[worker.rank][1]
                if worker.pulses and silence > self.limit:
                    freezes.append(Freeze(worker, silence, "has run no Python for {:.1f} s"))
            elif now - self.running[worker.rank] > STOPPED:
                name = signal.Signals(number).name
                text = f"has stood still for {{:.1f}} s, stopped by {name}"
                freezes.append(Freeze(worker, now - self.running[worker.rank], text))
        return max(freezes, key=lambda freeze: freeze.seconds, default=None)


def _stopped(worker: Worker) -> int | None:
    """Return the signal that has stopped a worker's process, None while it runs."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None
    # WNOWAIT keeps the answer for the next call, until the process continues.
    stop = os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    return None if stop is None else stop.si_status
