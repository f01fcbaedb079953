"""Files of weights: `.safetensors` and torch's own. Nothing in them is ever executed.

Every file is read as hostile: its header is checked against its size before any array is made, and a pickle
may only build tensors. Writing never leaves half a file behind.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import FileError
from . import safetensors_file, torch_file
from .path import checked_path, written

READERS = {
    ".safetensors": safetensors_file.read,
    ".pt": torch_file.read,
    ".pth": torch_file.read,
    ".bin": torch_file.read,
}


def read_weights(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Any]:
    """The tensors in a file, by name.

    Args:
      path: of a `.safetensors` file, or of a `.pt`, `.pth` or `.bin` that `torch.save` wrote.
      key: the entry of a checkpoint that is the state_dict, if there is more than weights in it; dots between
        words.

    Returns:
      `.safetensors`: arrays on the file's own bytes, read when they are used. Else torch tensors,
      with whatever else the checkpoint holds.

    Raises:
      FileError: no such file, damaged, of another kind, or a pickle of more than tensors.
      ModuleNotFoundError: the file needs torch or safetensors, which is not installed.

    torch counterpart: `torch.load(path, map_location="cpu", weights_only=True)`.
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
    """Writes arrays or tensors by name; the file appears when it is complete.

    Args:
      path: ending in `.safetensors`, or in `.pt`, `.pth` or `.bin` for a torch state_dict.
      tensors: NumPy arrays, JAX arrays or torch tensors.
      metadata: texts for the header of a `.safetensors` file; `{"format": "pt"}` if left out.

    Raises:
      FileError: an unknown ending, or a value or element type that the file cannot hold.
      OSError: the folder is missing or not writable; an older file is still there.
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
