"""The folder of one step, and its single layer of digests.

```text
12/manifest                the SHA-256 of the next line; then JSON: names, shapes, digests, small values
12/arrays/net.kernel/0.0   the bytes of a leaf
```

orbax writes each array into a separate file that contains only the array's bytes. Therefore one digest covers
both leaf and file: it is computed from the saved memory and compared with the restored file, so it detects
any corruption in between, before anything is decoded, and the error names the leaf. The manifest starts with
its own digest. Manifest and array files suffice to restore the arrays; orbax's metadata files next to them
allow reading a step without jaxpar.

orbax's default layout (OCDBT) packs many leaves into one file. There, a file's digest cannot name the damaged
leaf, and a leaf's digest is compared only after TensorStore has decoded unchecked bytes, which kills the
process if they claim a shape too large to allocate. That layout needs both digests.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np

from ..errors import CheckpointError
from .json_values import Json, dtype_of

FORMAT = 2
MANIFEST, ARRAYS = "manifest", "arrays"

THREADS = 8
"""Files to read, hash or flush at once: neither disk access nor hashing holds the GIL."""

MAX_LISTED = 3
"""Damaged leaves that an error lists."""


class Damage(Exception):
    """A step on disk differs from what was written; `restore` falls back to an older step."""


class SavedArray(TypedDict):
    """An array's manifest entry; `file` is relative to the step's folder."""

    shape: list[int]
    dtype: str
    file: str
    sha256: str


class SavedValue(TypedDict):
    """A small value, and whether it belongs to a random stream."""

    value: Json
    stream: bool


Arrays: TypeAlias = "dict[tuple[str, str], np.ndarray]"
"""Arrays by item and leaf."""

State: TypeAlias = "dict[str, dict[str, SavedValue]]"
"""One rank's small values, by item and leaf."""


class Parts(TypedDict):
    """Which of `size` ranks saved a step, if some did not, and the `items` that may differ between ranks."""

    ranks: list[int]
    size: int
    items: list[str]


class Metric(NamedTuple):
    """A number and its mode: whether lower ("min") or higher ("max") is better."""

    value: float
    mode: str

    @classmethod
    def of(cls, value: Any, mode: str) -> Metric:
        if mode not in ("min", "max"):
            raise ValueError(f"Checkpointer.save_best: mode is 'min' or 'max', not {mode!r}.")
        # float() accepts any array with one element; more dimensions usually mean a forgotten reduction.
        if getattr(value, "shape", ()) not in ((), (1,)):
            raise TypeError(
                f"Checkpointer.save_best: the metric has shape {value.shape}; it must be one number: .mean()."
            )
        try:
            return cls(float(value.item() if hasattr(value, "item") else value), mode)
        except (TypeError, ValueError):
            raise TypeError(
                f"Checkpointer.save_best: the metric is {value!r}; it must be one number."
            ) from None

    @property
    def badness(self) -> float:
        """The value, negated for "max", so that lower is always better."""
        return self.value if self.mode == "min" else -self.value


class Manifest(TypedDict):
    """The manifest of a step. `states` has one entry per rank, or a single one if all ranks are equal."""

    format: int
    step: int
    arrays: dict[str, dict[str, SavedArray]]
    states: list[State]
    parts: NotRequired[Parts | None]
    metric: NotRequired[Metric]


def read_manifest(step: Path) -> Manifest:
    """Read a step's manifest; raise Damage, or CheckpointError if it has a different format."""
    if not (step / MANIFEST).exists() and not (step / ARRAYS).exists():
        raise Damage("it has neither manifest nor arrays, so it was not written by jaxpar.Checkpointer")
    format_number = 1  # in format 1, the manifest is a folder
    if not (step / MANIFEST).is_dir():
        seal, _, text = bytes(_bytes(step, MANIFEST)).partition(b"\n")
        if seal != digest(text).encode():
            raise Damage(f"{MANIFEST} has other bytes than were written")
        try:
            manifest: Manifest = json.loads(text)
            format_number = manifest["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            # The text matches its digest, so only a faulty writer can cause this.
            raise Damage(f"its manifest makes no sense: {type(error).__name__}: {error}") from None
    if format_number != FORMAT:
        raise CheckpointError(
            f"Checkpointer: {step} has format {format_number}, and this version of jaxpar knows format "
            f"{FORMAT} only. The step is not damaged: restore it with the version that wrote it, or save "
            "to another directory."
        )
    # Digests cover the contents of a folder, not its name.
    if str(manifest.get("step")) != step.name:
        raise Damage(f"it holds step {manifest.get('step')}: the folder was renamed or copied")
    return manifest


def read_arrays(step: Path, manifest: Manifest, items: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
    """Read the arrays of some items, by item and leaf; raise Damage if any leaf does not match its digest."""

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
    # Leaves of other items are verified too: a damaged step must not be resumed from in part.
    with ThreadPoolExecutor(THREADS) as pool:
        damages = [damage for damage in pool.map(read, leaves) if damage]
    if damages:
        more = f"; and {len(damages) - MAX_LISTED} more" if len(damages) > MAX_LISTED else ""
        raise Damage("; ".join(damages[:MAX_LISTED]) + more)
    return by_item


def check_step(step: Path) -> None:
    read_arrays(step, read_manifest(step), ())


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def flush(path: Path) -> None:
    """Flush a file or a folder to disk, so that a power failure cannot empty the newest steps."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError:
        if not path.is_dir():  # some network file systems cannot fsync folders
            raise
    finally:
        os.close(file)


def _bytes(step: Path, name: str, size: int | None = None) -> memoryview:
    """Read a file. Unless its length is `size`, nothing is read or allocated."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise Damage(f"{name} is outside of the step's folder")
    try:
        # Compared before reading: a sparse file of any size would otherwise be loaded first.
        status = (step / name).stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise Damage(f"{name} is not a regular file")
        actual = status.st_size
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
