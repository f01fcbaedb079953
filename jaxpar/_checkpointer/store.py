"""The steps in a directory: written whole or not at all, and removed by nothing but `max_to_keep`.

A step is written to a folder of another name, which gets its number when it is complete and loses it before
it is removed. So `kill -9` leaves whole steps, and at most one folder that is none. A step that cannot be
read is never removed: the disk that failed may work again, and another version of jaxpar may read what this
one cannot. Only rank 0 writes; every process reads for itself.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import textwrap
from pathlib import Path

from .._training.watchdog import reached
from ..errors import CheckpointError
from .lock import Lock
from .metric import Metric
from .step import Arrays, Damage, Parts, State, flush, read_manifest

NUMBER = "(0|[1-9][0-9]*)"
"""Names of steps. `str.isdigit` would take a folder called `²` for one."""

UNFINISHED = ".tmp"

MARGIN = 1 << 20
"""Bytes for what is written beside the arrays."""


class Store:
    """One directory. Everything but `steps` and `path` is for the process that writes."""

    def __init__(self, directory: Path, max_to_keep: int | None):
        self.directory, self._max_to_keep, self._lock = directory, max_to_keep, Lock(directory)
        if directory.exists() and not directory.is_dir():
            raise CheckpointError(f"Checkpointer: {directory} is a file; give a folder for the steps.")

    def steps(self) -> list[int]:
        """The steps that are complete, oldest first."""
        return sorted(int(path.name) for path in self._folders(NUMBER))

    def _folders(self, pattern: str) -> list[Path]:
        paths = list(self.directory.iterdir()) if self.directory.is_dir() else []
        return [path for path in paths if re.fullmatch(pattern, path.name) and path.is_dir()]

    def path(self, step: int) -> Path:
        return self.directory / str(step)

    def open(self) -> None:
        """Makes the directory, locks it, and removes what a killed process left of an unfinished step.

        Not before the first step is saved: whoever only reads must not disturb a writer.
        """
        # orbax is for who writes. Not imported in the thread, which may run while the interpreter ends.
        from .writing import write_step

        self._write_step = write_step
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock.take()
        except OSError as error:
            raise CheckpointError(
                f"Checkpointer.save: {self.directory} cannot be written to: {error.strerror}."
            ) from None
        # Under the lock, so they are a dead process's and not another one's that is writing.
        for leftover in self._folders(rf"{NUMBER}(\.old)?{re.escape(UNFINISHED)}"):
            shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        self._lock.release()

    def set_aside(self, step: int) -> Path:
        """Renames a step whose number is needed. Only the user removes it."""
        aside, i = self.directory / f"{step}.damaged", 1
        while aside.exists():
            aside, i = self.directory / f"{step}.damaged-{i}", i + 1
        return self.path(step).rename(aside)

    def disk_error(self, step: int, arrays: Arrays) -> str | None:
        """What to say if the disk has no room for a step."""
        needed, free = _needed(arrays), shutil.disk_usage(self.directory).free
        return None if needed <= free else self._disk_full_text(step, arrays)

    def accepts(self, metric: Metric | None) -> bool:
        """Whether a step is to be saved at all."""
        del metric
        return True

    def write(
        self,
        step: int,
        arrays: Arrays,
        states: list[State],
        parts: Parts | None = None,
        metric: Metric | None = None,
    ) -> None:
        """Writes a step, then removes the oldest ones.

        Raises CheckpointError if it could not be written; all earlier steps are as they were.
        """
        unfinished = self.directory / f"{step}{UNFINISHED}"
        try:
            unfinished.mkdir()
            self._write_step(unfinished, step, arrays, states, parts, metric)
            replaced = self.directory / f"{step}.old{UNFINISHED}"
            if self.path(step).exists():
                self.path(step).rename(replaced)  # a best step that was trained again
            unfinished.rename(self.path(step))  # atomic on every file system with POSIX semantics
            flush(self.directory)
            if replaced.exists():
                shutil.rmtree(replaced)
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)  # or it would go on filling the disk
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CheckpointError(self._disk_full_text(step, arrays)) from None
            raise CheckpointError(
                f"Checkpointer.save: step {step} could not be written to {self.directory}: "
                f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}{_limit(error)}. "
                f"{self._steps_text()}"
            ) from None
        self._remove_oldest(step)
        reached(step)

    def _remove_oldest(self, written: int) -> None:
        """Keeps the highest numbers, and the step that was just written whatever its number is."""
        if self._max_to_keep is None:
            return
        for step in [step for step in self.steps() if self._is_readable(step)][: -self._max_to_keep]:
            if step != written:
                with contextlib.suppress(OSError):  # a step too many must not stop the training
                    shutil.rmtree(self.path(step).rename(self.directory / f"{step}{UNFINISHED}"))

    def _is_readable(self, step: int) -> bool:
        with contextlib.suppress(Damage, CheckpointError):
            return bool(read_manifest(self.path(step)))
        return False

    def _disk_full_text(self, step: int, arrays: Arrays) -> str:
        return (
            f"Checkpointer.save: the disk is full: step {step} needs {_needed(arrays):,} bytes, and "
            f"{self.directory} has {shutil.disk_usage(self.directory).free:,} free. {self._steps_text()}"
        )

    def _steps_text(self) -> str:
        return f"Steps on disk: {', '.join(map(str, self.steps())) or 'none'}."


def _limit(error: Exception) -> str:
    """Whose limit a file is too large for, if it is this process's."""
    if not isinstance(error, OSError) or error.errno != errno.EFBIG:
        return ""
    import resource

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return " for this file system"
    return f" for this process, which may write files of {most:,} bytes: ulimit -f"


def _needed(arrays: Arrays) -> int:
    return sum(x.nbytes for x in arrays.values()) + MARGIN
