"""Heartbeats: a training process reports each step, and a supervisor watches.

JAX's own heartbeats come from a separate thread, which goes on in a rank that hangs. Under `jaxpar launch` a
beat is stored in a file that the supervisor has mapped. Without a supervisor, `JAXPAR_STEP_TIMEOUT=S` makes
the process watch itself.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
from pathlib import Path

from .._arguments import Count

STEP_TIMEOUT = "JAXPAR_STEP_TIMEOUT"
BEAT_FILE = "JAXPAR_BEAT_FILE"
LIFELINE = "JAXPAR_LIFELINE"  # the descriptor of a pipe that a living supervisor holds open


class Marks:
    """One process's reports to its supervisor: a file of 64-bit integers that both have mapped."""

    BEATS, STEP, DONE, FAILED, LOST_PEER, PULSES = range(6)
    """Beats so far; the highest step named, -1 without; 1 at a proper end; when an exception left the
    script, in nanoseconds of the monotonic clock; 1 if that exception is about another rank's end, 2 + rank
    if it is that rank's error; how often a thread has run that does nothing else."""
    SIZE = 8 * 6

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open(path, "r+b") as file:
            # 64-bit cells, because an aligned store of 64 bits is seen completely or not at all.
            self.cells = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("q")

    @classmethod
    def create(cls, path: Path) -> Marks:
        path.write_bytes(bytes(cls.SIZE))
        marks = cls(path)
        marks.cells[cls.STEP] = -1
        return marks


class _Process:
    """This process's link to its supervisor: one object, so that a test can replace it."""

    looked = False
    marks: Marks | None = None
    timeout: float | None = None


_process = _Process()


def beat(step: Count | None = None) -> None:
    """Tell a supervisor that this process has made a step.

    >>> import jaxpar
    >>> jaxpar.beat(step=1)

    `jaxpar.train_step` and `jaxpar.DistributedDataParallel` do it by themselves; a loop that uses neither
    calls it once per step, and during anything else that takes long.

    Args:
      step: the number of the step, if it counts on from the last checkpoint: so the supervisor can
        distinguish a job that makes progress from one that fails at the same point again and again.

    Raises:
      ValueError: `JAXPAR_STEP_TIMEOUT` is not a positive number of seconds.
      TypeError: the step is not a whole number.
    """
    if not _process.looked:
        _look()
    marks = _process.marks
    if marks is not None:
        # A store into a mapped file needs no system call and no lock, and survives the death of the process.
        cells = marks.cells
        if step is not None and step > cells[1]:
            cells[1] = step
        cells[0] += 1
    elif _process.timeout is not None:
        # This restarts the timer, whose thread needs no GIL: it also ends a process that hangs in C.
        faulthandler.dump_traceback_later(_process.timeout, exit=True)


def reached(step: int) -> None:
    """Report that this step's checkpoint was written, or restored. This does not count as a beat."""
    if not _process.looked:
        _look()
    if _process.marks is not None:
        cells = _process.marks.cells
        cells[Marks.STEP] = max(cells[Marks.STEP], step)


def _look() -> None:
    path, seconds = os.environ.get(BEAT_FILE), os.environ.get(STEP_TIMEOUT, "").strip()
    if path:
        _process.marks = Marks(path)
    elif seconds:
        _process.timeout = _positive(seconds)
    _process.looked = True


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"beat: {STEP_TIMEOUT}={text!r} must be a positive number of seconds: the longest time between "
            "two steps. Unset it to let a step take as long as it takes."
        )
    return seconds
