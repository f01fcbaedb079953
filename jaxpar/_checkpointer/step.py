"""The folder of one step, and the one layer of digests in it.

```text
12/manifest                    the SHA-256 of the next line; then JSON: names, shapes, digests, small values
12/arrays/net.kernel/0.0       the bytes of a leaf
12/arrays/net.kernel/.zarray   its shape and dtype, for whoever reads it without jaxpar
12/arrays/_METADATA            the tree, for orbax
```

Every leaf is a file that holds its bytes and nothing else. So one digest serves leaf and file: taken from
the memory that is saved and compared with the file that is restored, it finds whatever went wrong in
between, before anything is decoded, and it names the leaf. The manifest begins with its own digest. What
stands beside the leaves follows from the manifest and is compared with it. That leaves no bit unchecked.

orbax's default layout (OCDBT) keeps many leaves in one file. There a file's digest cannot name a leaf, and a
leaf's is looked at only after TensorStore has decoded unchecked bytes, which ends the process
where they claim a shape too large to allocate: it takes both digests. The layout here is orbax's older one,
an uncompressed zarr array for each leaf; orbax, TensorStore and zarr read it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias, TypedDict
from urllib.parse import quote

import ml_dtypes
import numpy as np

from ..errors import CheckpointError
from .plain import Json, dtype_of, flat_bytes

FORMAT = 2
MANIFEST, ARRAYS, TREE = "manifest", "arrays", "arrays/_METADATA"

THREADS = 8
"""Files that are written or read at once: neither the disk nor hashing holds Python's lock."""

MOST = 3
"""Damaged leaves that an error lists."""

SAFE, LONGEST = " !$&'()+,;=@[]^{}", 200
"""The characters that a folder's name keeps, beside letters, digits and `_.-~`, and how many of them."""

Arrays: TypeAlias = "dict[str, dict[str, np.ndarray]]"
"""By item and leaf."""


class Damage(Exception):
    """A step on disk is not what was written; `restore` falls back on an older one."""


class SavedArray(TypedDict):
    shape: list[int]
    dtype: str
    sha256: str


class SavedValue(TypedDict):
    """A small value, and whether it belongs to a stream of random numbers."""

    value: Json
    stream: bool


State: TypeAlias = "dict[str, dict[str, SavedValue]]"
"""The small values of one rank, by item and leaf."""


class Manifest(TypedDict):
    """`states` has one entry for each rank, or a single one if all ranks have the same."""

    format: int
    step: int
    arrays: dict[str, dict[str, SavedArray]]
    states: list[State]


def write_step(folder: Path, step: int, arrays: Arrays, states: list[State]) -> None:
    """Writes a step into an empty folder. When this returns, all of it is on the disk."""
    places = _places(arrays)
    saved: dict[str, dict[str, SavedArray]] = {item: {} for item in arrays}
    with ThreadPoolExecutor(THREADS) as pool:
        written = pool.map(lambda at: _write_leaf(folder / places[at], arrays[at[0]][at[1]]), places)
        for (item, leaf), entry in zip(places, written, strict=True):
            saved[item][leaf] = entry
        if places:
            (folder / TREE).write_bytes(_tree(places.values()))
        manifest: Manifest = {"format": FORMAT, "step": step, "arrays": saved, "states": states}
        text = json.dumps(manifest).encode()
        (folder / MANIFEST).write_bytes(digest(text).encode() + b"\n" + text)
        # Not one by one as they are written: a journal is committed once for all that is there by then.
        list(pool.map(flush, [folder, *folder.rglob("*")]))


def read_manifest(step: Path) -> Manifest:
    """The manifest of a step.

    Raises:
      Damage: it is missing, or not what was written.
      CheckpointError: it is whole and of another format.
    """
    if not (step / MANIFEST).exists() and not (step / ARRAYS).exists():
        raise Damage("it has neither manifest nor arrays, so it was not written by jaxpar.Checkpointer")
    if (step / MANIFEST).is_dir():
        raise _of_another_format(step, 1)
    seal, _, text = bytes(_bytes(step, MANIFEST)).partition(b"\n")
    if seal != digest(text).encode():
        raise Damage(f"{MANIFEST} has other bytes than were written")
    manifest: Manifest = json.loads(text)
    if manifest["format"] != FORMAT:
        raise _of_another_format(step, manifest["format"])
    return manifest


def _of_another_format(step: Path, found: int) -> CheckpointError:
    return CheckpointError(
        f"Checkpointer: {step} has format {found}, and this version of jaxpar knows format {FORMAT} only. "
        "The step is not damaged: restore it with the version that wrote it, or save to another directory."
    )


def read_arrays(step: Path, manifest: Manifest, wanted: Collection[str]) -> Arrays:
    """The arrays of some items. Every byte of the step is checked, also of the other items.

    Raises:
      Damage: which files have other bytes than were written, and which leaves they are.
    """
    entries = manifest["arrays"]
    places = _places(entries)
    if places:
        _check(step, TREE, _tree(places.values()))

    def read(at: tuple[str, str]) -> np.ndarray | Damage | None:
        item, leaf = at
        try:
            array = _read_leaf(step, places[at], entries[item][leaf])
        except Damage as damage:
            return Damage(f"{damage} (leaf {item}: {leaf})")
        return array if item in wanted else None

    found: Arrays = {item: {} for item in wanted}
    damages = []
    with ThreadPoolExecutor(THREADS) as pool:
        for (item, leaf), result in zip(places, pool.map(read, places), strict=True):
            if isinstance(result, Damage):
                damages.append(str(result))
            elif result is not None:
                found[item][leaf] = result
    if damages:
        more = f"; and {len(damages) - MOST} more" if len(damages) > MOST else ""
        raise Damage("; ".join(damages[:MOST]) + more)
    return found


def check_step(step: Path) -> None:
    """Reads every byte of a step; raises what `read_manifest` and `read_arrays` raise."""
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
        found = (step / name).stat().st_size
        if size is not None and found != size:
            raise Damage(f"{name} has {found} bytes instead of {size}")
        return np.fromfile(step / name, np.uint8).data
    except FileNotFoundError:
        raise Damage(f"{name} is missing") from None
    except OSError as error:
        raise Damage(f"{name} cannot be read: {error.strerror}") from None


def _check(step: Path, name: str, expected: bytes) -> None:
    if _bytes(step, name, len(expected)) != expected:
        raise Damage(f"{name} has other bytes than were written")


def _write_leaf(folder: Path, array: np.ndarray) -> SavedArray:
    data = flat_bytes(array).data
    folder.mkdir(parents=True)
    (folder / ".zarray").write_bytes(_header(array.shape, array.dtype))
    (folder / _chunk(array.shape)).write_bytes(data)
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest(data)}


def _read_leaf(step: Path, folder: str, entry: SavedArray) -> np.ndarray:
    dtype, shape = dtype_of(entry["dtype"]), entry["shape"]
    _check(step, f"{folder}/.zarray", _header(shape, dtype))
    name = f"{folder}/{_chunk(shape)}"
    data = _bytes(step, name, math.prod(shape) * dtype.itemsize)
    if digest(data) != entry["sha256"]:
        raise Damage(f"{name} has other bytes than were written")
    return np.frombuffer(data, dtype).reshape(shape)


def _places(items: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], str]:
    """The folder of each leaf: item and leaf with the first dot between them.

    A leaf may have any name; a folder's has no slash, at most 255 bytes and, on some systems, no case.
    """
    found: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for item, leaf in [(item, leaf) for item, leaves in items.items() for leaf in leaves]:
        name = quote(item, SAFE).replace(".", "%2E") + "." + quote(leaf, SAFE)
        if len(name) > LONGEST or name.casefold() in taken:
            name = f"{name[: LONGEST // 2]}#{len(found)}"  # `quote` leaves no other #
        taken.add(name.casefold())
        found[item, leaf] = f"{ARRAYS}/{name}"
    return found


def _chunk(shape: Sequence[int]) -> str:
    """The file of a zarr array's first chunk, which is all of it here."""
    return ".".join("0" * len(shape)) or "0"


def _header(shape: Sequence[int], dtype: np.dtype) -> bytes:
    header = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(shape),
        # zarr has codes such as <f4 for NumPy's own types; TensorStore adds names for bfloat16 and its kin.
        "dtype": dtype.name if hasattr(ml_dtypes, dtype.name) else dtype.newbyteorder("=").str,
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "dimension_separator": ".",
    }
    return json.dumps(header).encode()


def _tree(places: Iterable[str]) -> bytes:
    """The tree as orbax 0.12 describes it, which later versions read too."""
    tree, of_dict, value = {}, 2, {"value_type": "np.ndarray", "skip_deserialize": False}
    for place in places:
        key = tuple(place.removeprefix(f"{ARRAYS}/").split(".", 1))
        words = [{"key": word, "key_type": of_dict} for word in key]
        tree[str(key)] = {"key_metadata": words, "value_metadata": value}
    return json.dumps({"tree_metadata": tree}).encode()
