"""Digests: what a step holds, leaf by leaf and file by file.

Two things can go wrong, and each has its digest. A leaf's SHA-256 is that of its bytes in memory when
it was saved: it finds whatever happens between there and the array that comes back. A file's is that
of its bytes on disk: it finds a flipped bit also where no leaf would show it, before anything decodes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

FORMAT = 1
ARRAYS, MANIFEST = "arrays", "manifest"
"""The two items of a step: orbax's arrays, and the JSON that describes them."""

FILES = "files"
"""The file beside the manifest with the digests of all files; its first line is its own digest."""


class Damage(Exception):
    """A step on disk is not what was written; `restore` falls back on an older one."""


def digest(array: np.ndarray) -> str:
    """The SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def describe(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest(array)}


class ManifestHandler(ocp.JsonCheckpointHandler):
    """orbax's handler for JSON, which at the end writes the digests of all files of the step.

    orbax calls `finalize` of its items in their order and then renames the step into place, so the
    digests appear together with what they are of.
    """

    def finalize(self, directory: Any) -> None:
        step = Path(directory).parent
        folders = {MANIFEST: Path(directory)}
        if (step / ARRAYS).exists():
            folders[ARRAYS] = step / ARRAYS
        found = {
            f"{name}/{path.relative_to(folder).as_posix()}": [path.stat().st_size, _digest_of(path)]
            for name, folder in folders.items()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        text = json.dumps(found)
        seal = hashlib.sha256(text.encode()).hexdigest()
        (Path(directory) / FILES).write_text(f"{seal}\n{text}")


@ocp.args.register_with_handler(ManifestHandler, for_save=True, for_restore=True)
class ManifestArgs(ocp.args.JsonSave):
    """What orbax passes to a ManifestHandler."""


def check_files(step: Path) -> None:
    """Reads every byte of a step.

    Raises:
      Damage: a file is missing, shorter or longer, or other bytes are in it.
    """
    for name, (size, sha256) in _files(step).items():
        path = step / name
        if not path.is_file():
            raise Damage(f"{name} is missing")
        found = path.stat().st_size
        if found != size:
            raise Damage(f"{name} has {found} bytes instead of {size}")
        if _digest_of(path) != sha256:
            raise Damage(f"{name} has other bytes than were written")


def read_manifest(step: Path) -> dict[str, Any]:
    """The manifest of a step, checked.

    Raises:
      Damage: it is not what was written. FileNotFoundError: there is none.
    """
    path = step / MANIFEST / "metadata"
    name = f"{MANIFEST}/metadata"
    if not path.is_file() and not (step / MANIFEST / FILES).is_file():
        raise FileNotFoundError(path)
    entry = _files(step).get(name)
    if entry is None or not path.is_file() or path.stat().st_size != entry[0] or _digest_of(path) != entry[1]:
        raise Damage(f"{name} is missing or has other bytes than were written")
    return json.loads(path.read_text())


def _files(step: Path) -> Mapping[str, tuple[int, str]]:
    path = step / MANIFEST / FILES
    try:
        seal, text = path.read_text().split("\n", 1)
    except (OSError, ValueError):
        raise Damage(f"{MANIFEST}/{FILES} is missing or unreadable") from None
    if hashlib.sha256(text.encode()).hexdigest() != seal:
        raise Damage(f"{MANIFEST}/{FILES} has other bytes than were written")
    return json.loads(text)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
