"""Start gangs until one is done, one may not be restarted, or a signal stops the run."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ...distributed.secret import fresh
from . import report
from .environment import CACHE, cache_folder, certificates, free_port, variables
from .gang import Gang
from .settings import DONE, NEVER_RESTARTED, PREEMPTED, LaunchSettings
from .sink import Terminal
from .watch import LOOK, STOPS, AttemptEnd, GangWatch, Signals


def run(settings: LaunchSettings) -> int:
    with listening() as signals, tempfile.TemporaryDirectory(prefix="jaxpar-") as folder:
        terminal = Terminal()
        if CACHE not in os.environ and (cache := cache_folder()) and not cache.exists():
            terminal.say(
                f"later starts read compiled programs from {cache}. Another {CACHE} is another folder, "
                "and an empty one none."
            )
        try:
            return Supervisor(settings, signals, Path(folder), terminal).run()
        finally:
            terminal.close()


def dry(settings: LaunchSettings) -> int:
    """Print the commands that would be started, one line per process, as shell input."""
    port, secret = free_port(), fresh()
    command = [sys.executable, *["-m"] * settings.module, settings.target, *settings.arguments]
    for rank in range(settings.n):
        added = [f"{name}={value}" for name, value in variables(settings, rank, port, secret, 0).items()]
        print(shlex.join([*added, *command]))
    return DONE


class Supervisor:
    def __init__(self, settings: LaunchSettings, signals: Signals, folder: Path, terminal: Terminal) -> None:
        self.settings, self.signals, self.folder = settings, signals, folder
        self.terminal = terminal
        self.certificates = certificates(folder) if settings.tls else {}
        self.restarts = self.counted = self.idle = 0
        self.highest = -1
        self.beats = False

    def run(self) -> int:
        while True:
            gang = Gang(self.settings, self.restarts, self.folder, self.terminal, self.certificates)
            outcome = GangWatch(gang, self.settings, self.signals).run()
            self.judge(gang)
            end = self._reason_to_end(outcome)
            if end is not None:
                self.terminal.say(report.last(gang, outcome, end))
                return outcome.code
            self.counted += outcome.code != PREEMPTED  # the machine was wanted back: not the script's fault
            delay = self.settings.delay(max(self.idle - 1, 0))
            self.terminal.say(report.between(gang, outcome, self.counted, self.settings, delay))
            if stop := self._sleep(delay):
                self.terminal.say(f"stopped by {signal.Signals(stop).name} between two attempts")
                return PREEMPTED if outcome.code == PREEMPTED else 128 + stop
            self.restarts += 1

    def judge(self, gang: Gang) -> None:
        """Count the consecutive attempts that got no further than the attempts before."""
        self.idle = 0 if self._got_further(gang) else self.idle + 1

    def _got_further(self, gang: Gang) -> bool:
        # Reported steps are the best evidence of progress, but optional. Without them a beat counts, and for
        # a script that never beats only its lifetime is observable.
        step = max(worker.step for worker in gang.workers)
        beats = any(worker.beats for worker in gang.workers)
        further = step > self.highest
        self.highest, self.beats = max(step, self.highest), self.beats or beats
        if self.highest >= 0:
            return further
        return beats if self.beats else time.monotonic() - gang.clock > self.settings.lasting

    def _reason_to_end(self, outcome: AttemptEnd) -> str | None:
        if outcome.code == DONE or outcome.stopped:
            return ""
        if outcome.code in NEVER_RESTARTED:
            return f"exit code {outcome.code} is never restarted: the same would happen again"
        # Restarts after a preemption do not count against --max-restarts.
        if outcome.code != PREEMPTED and self.counted >= self.settings.max_restarts:
            return f"not restarted: --max-restarts is {self.settings.max_restarts}"
        if self.idle > self.settings.patience:
            where = f"beyond step {self.highest}" if self.highest >= 0 else "at all"
            return f"gave up after {self.settings.patience} restarts in a row without progress {where}"
        return None

    def _sleep(self, seconds: float) -> int | None:
        """Wait; return the signal that requested a stop, if one came."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            try:
                # Short waits, because Python runs handlers between bytecodes: a signal just before a blocking
                # call is handled only after the call.
                number = self.signals.get(timeout=min(remaining, LOOK))
            except queue.Empty:
                continue
            if number in STOPS:
                return number
        return None


@contextmanager
def listening() -> Iterator[Signals]:
    # A handler may run between any two bytecodes of the supervisor, so it must not touch the gang itself.
    signals: Signals = queue.SimpleQueue()

    def put(number: int, frame: FrameType | None) -> None:
        signals.put(number)

    # Ignored signals stay ignored: nohup ignores SIGHUP, and shells ignore SIGINT for background jobs.
    heard = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, put) for number in (*heard, signal.SIGCHLD)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
