"""The processes of one attempt, which start and end together, as in torchrun's worker group."""

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
    """The write end of a pipe, which the kernel closes when the supervisor ends, for whatever reason."""

    @property
    def beats(self) -> int:
        return self.marks.cells[Marks.BEATS]

    @property
    def step(self) -> int:
        """The highest reported step; -1 if the script reports none."""
        return self.marks.cells[Marks.STEP]

    @property
    def pulses(self) -> int:
        return self.marks.cells[Marks.PULSES]

    @property
    def done(self) -> bool:
        return bool(self.marks.cells[Marks.DONE])

    @property
    def left_early(self) -> bool:
        return self.code == 0 and not self.done

    @property
    def raised(self) -> int:
        """When an exception ended the script, in nanoseconds; 0 without an exception."""
        return self.marks.cells[Marks.FAILED]

    @property
    def lost_peer(self) -> bool:
        """Whether that exception is about another rank's end."""
        return bool(self.marks.cells[Marks.LOST_PEER])

    @property
    def blamed(self) -> int:
        """The rank whose error that exception is; -1 if it names none."""
        return max(self.marks.cells[Marks.LOST_PEER] - 2, -1)

    def ending(self) -> tuple[int, int]:
        """Return a key that sorts workers whose ends were noticed together: causes before consequences."""
        # A peer's failure never causes SIGKILL or a segmentation fault, so those are causes. Exceptions are
        # ordered by time. An abort, or an exit without an exception, is how JAX, NCCL and jaxpar end a
        # process that has lost a peer, so those come late; an exception about a lost peer is never a cause.
        if self.code is not None and self.code < 0 and self.code != -signal.SIGABRT:
            return 0, 0
        if self.lost_peer:
            return 3, self.raised
        return (1, self.raised) if self.raised else (2, 0)


class Gang:
    """n workers with one port, each in a separate process group so that its own children end too."""

    def __init__(
        self,
        settings: LaunchSettings,
        restart: int,
        folder: Path,
        terminal: Terminal,
        certificates: dict[str, str],
    ) -> None:
        self.born, self.clock = time.time(), time.monotonic()
        logs = settings.log_dir and settings.log_dir / f"attempt_{restart}"
        self.terminal = terminal
        self.output = GangOutput(terminal if settings.tee else None, logs)
        self.workers: list[Worker] = []
        # Fresh for each attempt, so that no rank of an earlier attempt can join.
        port, secret = free_port(), fresh()
        kind = "module" if settings.module else "script"
        command = [sys.executable, "-u", WORKER, kind, settings.target, *settings.arguments]
        try:
            for rank in range(settings.n):
                added = variables(settings, rank, port, secret, restart) | certificates
                self.workers.append(self._start(command, rank, added, folder / f"{restart}-{rank}"))
        except BaseException:
            self.kill()
            raise
        self.output.thread.start()

    def _start(self, line: list[str], rank: int, added: dict[str, str], file: Path) -> Worker:
        marks = Marks.create(file)
        # One pipe per worker: the kernel sends a closed pipe's signal to one process group only.
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
        """Return the workers that have ended since the last call, the most likely cause first."""
        now = time.time()
        ended = []
        for worker in self.running:
            worker.code = _code(worker.process)
            if worker.code is not None:
                worker.ended = now
                ended.append(worker)
        return sorted(ended, key=Worker.ending)

    def signal(self, number: int) -> None:
        # Not to their process groups: a script may still need its children to save, and ends them itself.
        for worker in self.running:
            os.kill(worker.process.pid, number)

    def kill(self) -> None:
        for worker in self.workers:
            # macOS raises PermissionError for a group of dead processes.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self.workers:
            code = worker.process.wait()
            if worker.code is None:
                worker.code, worker.killed, worker.ended = code, True, time.time()

    def close(self) -> None:
        for lost in self.output.close():
            self.terminal.say(lost)
        for worker in self.workers:
            os.close(worker.lifeline)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return a process's exit code as `poll` does, but without reaping it; None while it runs."""
    # `poll` would free the process id, which is the group's id too, so that `kill` could hit unrelated
    # processes.
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll()
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
