"""A lock for the single writer of a directory, which the kernel releases when its holder dies.

The file is never removed: otherwise two processes could lock two files with one name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from .warn import warn

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
