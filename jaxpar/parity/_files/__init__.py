"""Read and write weight files: `.safetensors`, and torch's own formats.

Every file is treated as hostile: its header is checked against its size before any array is allocated, and a
pickle may only construct tensors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import FileError
from . import safetensors_file, torch_file

READERS: dict[str, Callable[[str], Any]] = {
    ".safetensors": safetensors_file.read,
    **dict.fromkeys((".pt", ".pth", ".bin"), torch_file.read),
}


def read_weights(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Any]:
    """Read the tensors in a file, by name.

    Args:
      path: a `.safetensors` file, or a `.pt`, `.pth` or `.bin` file written by `torch.save`.
      key: the state_dict's key in a checkpoint that holds more than weights; dots separate nested keys.

    Returns:
      For `.safetensors`, arrays that are memory-mapped from the file. Otherwise torch tensors, along with
        any other entries of the checkpoint.

    Raises:
      FileError: the file is missing, damaged or of an unknown kind, or pickles more than tensors.
      ModuleNotFoundError: torch or safetensors is needed and not installed.

    torch counterpart: `torch.load(path, map_location="cpu", weights_only=True)`.

    >>> import tempfile
    >>> import numpy as np
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parity.write_weights(f"{folder}/w.safetensors", {"fc.bias": np.ones(3, np.float32)})
    ...     parity.read_weights(f"{folder}/w.safetensors")
    {'fc.bias': array([1., 1., 1.], dtype=float32)}
    """
    name = os.fspath(path)
    content: Any = READERS[_kind(name)](checked_path(name))
    for part in key.split(".") if key else ():
        if not isinstance(content, Mapping) or part not in content:
            names = ", ".join(map(str, list(content)[:8])) if isinstance(content, Mapping) else "no names"
            raise FileError(f"{name}: there is no {key!r} in it; where {part!r} was looked for is {names}.")
        content = content[part]
    if not isinstance(content, Mapping):
        raise FileError(f"{name}: it holds a {type(content).__name__}, not tensors by name.")
    return dict(content)


def write_weights(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays or tensors by name; the file appears only when complete.

    Args:
      path: a file name with the suffix `.safetensors`, or `.pt`, `.pth` or `.bin` for a torch state_dict.
      tensors: NumPy arrays, JAX arrays or torch tensors by name.
      metadata: strings for the header of a `.safetensors` file; `{"format": "pt"}` by default.

    Raises:
      FileError: an unknown suffix, or a value or element type that the format does not support.
      OSError: the folder is missing or not writable; an existing file is unchanged.

    torch counterpart: `torch.save(state_dict, path)`.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parity.write_weights(f"{folder}/w.safetensors", {"w": np.zeros((2, 3))}, metadata={"step": "7"})
    ...     os.listdir(folder)
    ['w.safetensors']
    """
    name = os.fspath(path)
    kind = _kind(name)
    with written(name) as temporary:
        if kind == ".safetensors":
            safetensors_file.write(temporary, name, tensors, dict(metadata or {"format": "pt"}))
        else:
            torch_file.write(temporary, name, tensors)


def _kind(name: str) -> str:
    ending = os.path.splitext(name)[1].lower()
    if ending not in READERS:
        raise FileError(f"{name}: {ending or 'no ending'} is unknown; known are {', '.join(READERS)}.")
    return ending


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
