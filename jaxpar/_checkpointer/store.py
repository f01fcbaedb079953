"""A directory of steps, written atomically and removed only by `max_to_keep`.

A step is written to a folder with a temporary name, which is renamed once it is complete, and back before its
removal. A step that cannot be read is never removed: the disk may recover, and a different version of jaxpar
may be able to read it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import shutil
import socket
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path

from .._arguments import warn
from .._training.watchdog import reached
from ..errors import CheckpointError
from .step import Arrays, Damage, Metric, Parts, State, flush, read_manifest

NUMBER = "(0|[1-9][0-9]*)"
"""Pattern of step names. `str.isdigit` would accept a folder called `²`."""

UNFINISHED = ".tmp"

MARGIN = 1 << 20
"""Bytes reserved for files other than the arrays."""


class Store:
    """One directory of steps. Only the writing process uses methods other than `steps` and `path`."""

    def __init__(self, directory: Path, max_to_keep: int | None):
        self.directory, self._max_to_keep, self._lock = directory, max_to_keep, Lock(directory)
        if directory.exists() and not directory.is_dir():
            raise CheckpointError(f"Checkpointer: {directory} is a file; give a folder for the steps.")

    def steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._folders(NUMBER))

    def _folders(self, pattern: str) -> list[Path]:
        paths = list(self.directory.iterdir()) if self.directory.is_dir() else []
        return [path for path in paths if re.fullmatch(pattern, path.name) and path.is_dir()]

    def path(self, step: int) -> Path:
        return self.directory / str(step)

    def open(self) -> None:
        """Create and lock the directory at the first save, and remove a killed process's unfinished step."""
        # Only writers import orbax, and not in the thread, which may run while the interpreter shuts down.
        from .writing import write_step

        self._write_step = write_step
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock.take()
        except OSError as error:
            raise CheckpointError(
                f"Checkpointer.save: {self.directory} cannot be written to: {error.strerror}."
            ) from None
        # This process holds the lock, so these belong to a dead process, not to a concurrent writer.
        for replaced in self._folders(rf"{NUMBER}\.old{re.escape(UNFINISHED)}"):
            step = self.path(int(replaced.name.partition(".")[0]))
            if not step.exists():  # the process died between the two renames of `write`
                replaced.rename(step)
        for leftover in self._folders(rf"{NUMBER}(\.old)?{re.escape(UNFINISHED)}"):
            shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        self._lock.release()

    def set_aside(self, step: int) -> Path:
        aside, i = self.directory / f"{step}.damaged", 1
        while aside.exists():
            aside, i = self.directory / f"{step}.damaged-{i}", i + 1
        return self.path(step).rename(aside)

    def disk_error(self, step: int, arrays: Arrays) -> str | None:
        needed, free = _needed(arrays), shutil.disk_usage(self.directory).free
        return None if needed <= free else self._disk_full_text(step, arrays)

    def accepts(self, metric: Metric | None) -> bool:
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
        """Write a step, then remove the oldest ones; if that fails, all earlier steps are unchanged."""
        unfinished = self.directory / f"{step}{UNFINISHED}"
        try:
            unfinished.mkdir()
            self._write_step(unfinished, step, arrays, states, parts, metric)
            replaced = self.directory / f"{step}.old{UNFINISHED}"
            if self.path(step).exists():
                self.path(step).rename(replaced)
            unfinished.rename(self.path(step))  # atomic on every file system with POSIX semantics
            # The rename must be durable before older steps are removed.
            flush(self.directory)
            if replaced.exists():
                shutil.rmtree(replaced)
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)  # or it would keep filling the disk
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
        """Remove all readable steps but the highest numbers and the step just written."""
        if self._max_to_keep is None:
            return
        for step in [step for step in self.steps() if self._is_readable(step)][: -self._max_to_keep]:
            if step != written:
                with contextlib.suppress(OSError):  # failing to remove a step must not stop training
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
    if not isinstance(error, OSError) or error.errno != errno.EFBIG:
        return ""
    import resource

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return " for this file system"
    return f" for this process, which may write files of {most:,} bytes: ulimit -f"


def _needed(arrays: Arrays) -> int:
    return sum(x.nbytes for x in arrays.values()) + MARGIN


# The lock's file is never removed: otherwise two processes could lock two files with one name.
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Error codes of file systems without locks, such as Lustre mounted without `flock`."""


class Lock:
    def __init__(self, directory: Path):
        self._path = directory / ".lock"
        self._file = -1
        self._close: Callable[[], object] = lambda: None
        _all.add(self)

    def take(self) -> None:
        """Acquire the lock, unless held; raise CheckpointError if a different process or Checkpointer holds
        it.
        """
        with contextlib.suppress(OSError):
            # The directory, including the locked file, may have been removed since.
            if self._file >= 0 and os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                return
        self.release()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._close = weakref.finalize(self, os.close, self._file)  # also without `release`
        try:
            # A lock file that locks by existing would survive `kill -9` and keep the restarted run out.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Read the holder before closing: the name is in the file that is about to be closed.
            holder = self._holder()
            self.release()
            raise CheckpointError(
                f"Checkpointer.save: {holder} saves to {self._path.parent}, and a second writer would remove "
                "its unfinished steps. close() or end the other one, or use another directory."
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            warn(
                f"Checkpointer.save: the file system of {self._path.parent} has no locks; make sure that no "
                "other process saves there."
            )
        with contextlib.suppress(OSError):  # on a full disk the lock still works, without its holder's name
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()} {socket.gethostname()}".encode(), 0)

    def release(self) -> None:
        self._close()
        self._file = -1

    def _holder(self) -> str:
        pid, _, host = os.pread(self._file, 300, 0).decode(errors="replace").partition(" ")
        if (pid, host) == (str(os.getpid()), socket.gethostname()):
            return "another Checkpointer of this process"
        return f"process {pid} on {host}" if host else "another process"


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forked() -> None:
    # A forked child shares the open file and would hold the lock for its lifetime, even after this process
    # was killed. Closing the child's copy does not unlock the parent's.
    for lock in list(_all):
        lock.release()


os.register_at_fork(after_in_child=_forked)


BEST = "best"


class BestStore(Store):
    def __init__(self, directory: Path, keep: int):
        super().__init__(directory, keep)
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the complete steps, best last, then unreadable ones that may have been better."""
        ranked = self._ranked()
        others = [step for step in super().steps() if step not in ranked]
        readable = [step for step in others if self._is_readable(step)]
        return readable + ranked + [step for step in others if step not in readable]

    def best(self) -> int | None:
        ranked = self._ranked()
        return ranked[-1] if ranked else None

    def accepts(self, metric: Metric | None) -> bool:
        """Return whether this metric is among the best; raise if the stored steps use the other mode."""
        assert metric is not None
        metrics = self._metrics()
        if any(other.mode != metric.mode for other in metrics.values()):
            raise CheckpointError(
                f"Checkpointer.save_best: the steps in {self.directory} are the best with another mode than "
                f"{metric.mode!r}. Use another directory for another metric."
            )
        # First, because a directory with room would accept NaN, which then compares with nothing.
        if math.isnan(metric.value):
            return False
        if len(metrics) < self._keep:
            return True
        return metric.badness < max(other.badness for other in metrics.values())

    def _ranked(self) -> list[int]:
        metrics = self._metrics()
        return sorted(metrics, key=lambda step: (-metrics[step].badness, -step))

    def _metrics(self) -> dict[int, Metric]:
        metrics = {}
        for step in super().steps():
            # A step without a readable metric, such as a different version's, is not ranked.
            with contextlib.suppress(Damage, CheckpointError, KeyError, TypeError):
                metrics[step] = Metric(*read_manifest(self.path(step))["metric"])
        return metrics
