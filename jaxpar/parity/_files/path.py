"""Check a path before reading, and write files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ...errors import FileError


def checked_path(name: str) -> str:
    try:
        status = os.stat(name)
    except (OSError, ValueError) as error:
        raise FileError(f"{name}: it cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if stat.S_ISDIR(status.st_mode):
        raise FileError(f"{name}: it is a folder; give the file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{name}: it is no plain file.")
    if not status.st_size:
        raise FileError(f"{name}: it is empty.")
    return name


@contextlib.contextmanager
def written(name: str) -> Iterator[str]:
    """Yield a temporary path in the same folder, which replaces `name` if the block succeeds."""
    folder, file = os.path.split(os.path.abspath(name))
    if os.path.isdir(name):
        raise FileError(f"{name}: it is a folder; give a file's name.")
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    # In the same folder, because os.replace is atomic only within a file system.
    temporary = os.path.join(folder, f".{file}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb+") as done:
            os.fsync(done.fileno())  # otherwise a crash could leave an empty file under the new name
        os.replace(temporary, name)
    except OSError as error:
        if error.filename is None:  # a write's error names no file
            error.filename = name
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
