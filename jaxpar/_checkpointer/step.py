"""The folder of one step, and the one layer of digests in it.

```text
12/manifest                the SHA-256 of the next line; then JSON: names, shapes, digests, small values
12/arrays/net.kernel/0.0   the bytes of a leaf
```

orbax writes the arrays, each into a file that holds its bytes and nothing else. So one digest serves leaf and
file: taken from the memory that is saved and compared with the file that is restored, it finds whatever went
wrong in between, before anything is decoded, and it names the leaf. The manifest begins with its own digest.
Both together make the arrays. What orbax notes beside them is for those who read a step without jaxpar.

orbax's default layout (OCDBT) keeps many leaves in one file. There a file's digest cannot name a leaf, and a
leaf's is looked at only after TensorStore has decoded unchecked bytes, which ends the process
where they claim a shape too large to allocate: it takes both digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NotRequired, TypeAlias, TypedDict

import numpy as np

from ..errors import CheckpointError
from .json_values import Json, dtype_of
from .metric import Metric

FORMAT = 2
MANIFEST, ARRAYS = "manifest", "arrays"

THREADS = 8
"""Files that are read, hashed or flushed at once: neither the disk nor hashing holds Python's lock."""

MAX_LISTED = 3
"""Damaged leaves that an error lists."""


class Damage(Exception):
    """A step on disk is not what was written; `restore` falls back on an older one."""


class SavedArray(TypedDict):
    """An array; `file` is where in the step's folder its bytes are."""

    shape: list[int]
    dtype: str
    file: str
    sha256: str


class SavedValue(TypedDict):
    """A small value, and whether it belongs to a stream of random numbers."""

    value: Json
    stream: bool


Arrays: TypeAlias = "dict[tuple[str, str], np.ndarray]"
"""By item and leaf."""

State: TypeAlias = "dict[str, dict[str, SavedValue]]"
"""The small values of one rank, by item and leaf."""


class Parts(TypedDict):
    """Whose states a step has, where ranks did not take part: those of `ranks`, of `size` that there were.
    `items` may be something else on each rank."""

    ranks: list[int]
    size: int
    items: list[str]


class Manifest(TypedDict):
    """`states` has one entry for each rank, or a single one if all ranks have the same. `parts` is None if
    all ranks took part, or had nothing of their own. `metric` is that of a best step, with its mode."""

    format: int
    step: int
    arrays: dict[str, dict[str, SavedArray]]
    states: list[State]
    parts: NotRequired[Parts | None]
    metric: NotRequired[Metric]


def read_manifest(step: Path) -> Manifest:
    """The manifest of a step; raises CheckpointError if it is whole and of another format."""
    if not (step / MANIFEST).exists() and not (step / ARRAYS).exists():
        raise Damage("it has neither manifest nor arrays, so it was not written by jaxpar.Checkpointer")
    format_number = 1  # whose manifest is a folder
    if not (step / MANIFEST).is_dir():
        seal, _, text = bytes(_bytes(step, MANIFEST)).partition(b"\n")
        if seal != digest(text).encode():
            raise Damage(f"{MANIFEST} has other bytes than were written")
        manifest: Manifest = json.loads(text)
        format_number = manifest["format"]
    if format_number != FORMAT:
        raise CheckpointError(
            f"Checkpointer: {step} has format {format_number}, and this version of jaxpar knows format "
            f"{FORMAT} only. The step is not damaged: restore it with the version that wrote it, or save "
            "to another directory."
        )
    return manifest


def read_arrays(step: Path, manifest: Manifest, items: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of some items, by item and leaf. Every leaf is checked, also of the other items."""

    by_item: dict[str, dict[str, np.ndarray]] = {item: {} for item in items}

    def read(at: tuple[str, str, SavedArray]) -> str | None:
        item, leaf, entry = at
        try:
            array = _read_array(step, entry)
        except Damage as damage:
            return f"{damage} (leaf {item}: {leaf})"
        if item in items:
            by_item[item][leaf] = array
        return None

    leaves = [
        (item, *leaf_entry) for item, arrays in manifest["arrays"].items() for leaf_entry in arrays.items()
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        damages = [damage for damage in pool.map(read, leaves) if damage]
    if damages:
        more = f"; and {len(damages) - MAX_LISTED} more" if len(damages) > MAX_LISTED else ""
        raise Damage("; ".join(damages[:MAX_LISTED]) + more)
    return by_item


def check_step(step: Path) -> None:
    """Reads every leaf of a step; raises what `read_manifest` and `read_arrays` raise."""
    read_arrays(step, read_manifest(step), ())


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def flush(path: Path) -> None:
    """Puts a file's bytes, or the names in a folder, on the disk.

    Without it a power cut could empty the newest steps after the older ones were removed.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError:
        if not path.is_dir():  # for folders, some network file systems have no such call
            raise
    finally:
        os.close(file)


def _bytes(step: Path, name: str, size: int | None = None) -> memoryview:
    """The bytes of a file. If it does not have `size` of them, nothing is read, and nothing allocated."""
    try:
        actual = (step / name).stat().st_size
        if size is not None and actual != size:
            raise Damage(f"{name} has {actual} bytes instead of {size}")
        return np.fromfile(step / name, np.uint8).data
    except FileNotFoundError:
        raise Damage(f"{name} is missing") from None
    except OSError as error:
        raise Damage(f"{name} cannot be read: {error.strerror}") from None


def _read_array(step: Path, entry: SavedArray) -> np.ndarray:
    dtype, shape, name = dtype_of(entry["dtype"]), entry["shape"], entry["file"]
    data = _bytes(step, name, math.prod(shape) * dtype.itemsize)
    if digest(data) != entry["sha256"]:
        raise Damage(f"{name} has other bytes than were written")
    return np.frombuffer(data, dtype).reshape(shape)
