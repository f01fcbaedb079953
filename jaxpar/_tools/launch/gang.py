"""The processes of one attempt: started together, watched, and ended together.

torchrun's counterpart is its worker group. Each worker is the leader of a process group of its own, so that
whatever it has started (data loaders, compilers) can be ended with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..._training.watchdog import BEAT_FILE, LIFELINE, Marks
from ...distributed.secret import fresh
from .environment import free_port, variables
from .output import GangOutput
from .settings import LaunchSettings
from .sink import Terminal

WORKER = str(Path(__file__).with_name("worker.py"))


def command(settings: LaunchSettings) -> list[str]:
    kind = "module" if settings.module else "script"
    return [sys.executable, "-u", WORKER, kind, settings.target, *settings.arguments]


def plain_command(settings: LaunchSettings) -> list[str]:
    """The same command without a supervisor."""
    return [sys.executable, *["-m"] * settings.module, settings.target, *settings.arguments]


@dataclass(eq=False)
class Worker:
    """One process. `code` is negative for a signal, as in `subprocess`; None while it runs."""

    rank: int
    process: subprocess.Popen[bytes]
    marks: Marks
    code: int | None = None
    ended: float = 0
    """When its end was noticed, in seconds since the epoch."""
    killed: bool = False
    """Whether the supervisor ended it."""
    lifeline: int = -1
    """The writing end of a pipe. It closes when the supervisor ends, however that ends."""

    @property
    def beats(self) -> int:
        return self.marks.cells[Marks.BEATS]

    @property
    def step(self) -> int:
        """The highest step that was named; -1 if none was."""
        return self.marks.cells[Marks.STEP]

    @property
    def left_early(self) -> bool:
        """Whether it ended with 0 in the middle of its script."""
        return self.code == 0 and not self.marks.cells[Marks.DONE]

    @property
    def raised(self) -> int:
        """When an exception left its script, in nanoseconds; 0 if none did."""
        return self.marks.cells[Marks.FAILED]

    def ending(self) -> tuple[int, int]:
        """The key that sorts workers whose ends were noticed together: causes before consequences."""
        # No process dies of SIGKILL or a segmentation fault because of a peer. Exceptions are ordered by
        # their times. An abort, or an exit without an exception, is how JAX, NCCL and jaxpar end a process
        # that has lost a peer, so those come last.
        if self.code is not None and self.code < 0 and self.code != -signal.SIGABRT:
            return 0, 0
        return (1, self.raised) if self.raised else (2, 0)


class Gang:
    """n workers with one port, each in a process group of its own."""

    def __init__(self, settings: LaunchSettings, restart: int, folder: Path, terminal: Terminal) -> None:
        self.born, self.clock = time.time(), time.monotonic()
        logs = settings.log_dir and settings.log_dir / f"attempt_{restart}"
        self.terminal = terminal
        self.output = GangOutput(terminal if settings.tee else None, logs)
        self.workers: list[Worker] = []
        port, secret = free_port(), fresh()  # so that no rank of an earlier attempt can join
        try:
            for rank in range(settings.n):
                added = variables(settings, rank, port, secret, restart)
                self.workers.append(self._start(command(settings), rank, added, folder / f"{restart}-{rank}"))
        except BaseException:
            self.kill()
            raise
        self.output.start()

    def _start(self, line: list[str], rank: int, added: dict[str, str], file: Path) -> Worker:
        marks = Marks.create(file)
        # A pipe for each: the kernel sends the signal of a closed pipe to one process group only.
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                line,
                env=os.environ | added | {BEAT_FILE: str(file), LIFELINE: str(reading)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(reading,),
                process_group=0,
            )
        finally:
            os.close(reading)
        self.output.add(rank, process.stdout, process.stderr)
        return Worker(rank, process, marks, lifeline=writing)

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.code is None]

    def look(self) -> list[Worker]:
        """The workers that have ended since the last look, the most likely cause first."""
        now = time.time()
        ended = []
        for worker in self.running:
            worker.code = _code(worker.process)
            if worker.code is not None:
                worker.ended = now
                ended.append(worker)
        return sorted(ended, key=Worker.ending)

    def signal(self, number: int) -> None:
        """Sends a signal to the workers that run."""
        # Not to their groups: what they have started is theirs to end, and a script may save with it first.
        for worker in self.running:
            os.kill(worker.process.pid, number)

    def kill(self) -> None:
        """Ends all workers, and what they have started, at once; waits for them."""
        for worker in self.workers:
            # macOS refuses if only dead ones are left
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self.workers:
            code = worker.process.wait()
            if worker.code is None:
                worker.code, worker.killed, worker.ended = code, True, time.time()

    def close(self) -> None:
        """Closes what it had open, and says what could not be written."""
        for lost in self.output.close():
            self.terminal.say(lost)
        for worker in self.workers:
            os.close(worker.lifeline)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """A process's exit code, as `poll` gives it; None while it runs.

    `poll` would free its number, which is its group's too, and `kill` could meet somebody else's processes.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll()
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
