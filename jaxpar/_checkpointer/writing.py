"""Writes a step: orbax the arrays, this file the manifest.

orbax's handler does it without orbax's Checkpointer and its barriers: only rank 0 comes here, and `store` has
the folder that appears whole or not at all. Nobody else imports orbax, so reading needs none of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from .json_values import flat_bytes
from .metric import Metric
from .step import ARRAYS, FORMAT, MANIFEST, THREADS, Arrays, Manifest, Parts, State, digest, flush

SAFE, LONGEST = " !$&'()+,;=@[]^{}", 200
"""The characters that a folder's name keeps, beside letters, digits and `_.-~`, and how many of them."""


def write_step(
    folder: Path,
    step: int,
    arrays: Arrays,
    states: list[State],
    parts: Parts | None = None,
    metric: Metric | None = None,
) -> None:
    """Writes a step into an empty folder. When this returns, all of it is on the disk."""
    manifest: Manifest = {"format": FORMAT, "step": step, "arrays": {}, "states": states, "parts": parts}
    if metric is not None:
        manifest["metric"] = metric
    keys = _orbax_keys(arrays)
    tree: dict[str, dict[str, np.ndarray]] = {}
    for at, (first, second) in keys.items():
        # What TensorStore has no dtype for, such as datetime64, it is given as bytes.
        has_dtype = hasattr(ts, arrays[at].dtype.name)
        tree.setdefault(first, {})[second] = arrays[at] if has_dtype else flat_bytes(arrays[at])
    with ThreadPoolExecutor(THREADS) as pool:
        # Of the memory that is saved, not of the files, and while orbax writes.
        digests = pool.map(lambda x: digest(flat_bytes(x).data), arrays.values())
        if tree:
            _write_tree(folder / ARRAYS, tree)
        for ((item, leaf), x), sha256 in zip(arrays.items(), digests, strict=True):
            manifest["arrays"].setdefault(item, {})[leaf] = {
                "shape": list(x.shape),
                "dtype": x.dtype.name,
                "file": _file_of(folder, ".".join(keys[item, leaf]), x.nbytes),
                "sha256": sha256,
            }
        text = json.dumps(manifest).encode()
        (folder / MANIFEST).write_bytes(digest(text).encode() + b"\n" + text)
        # Not one by one as they are written: a journal is committed once for all that is there by then.
        list(pool.map(flush, [folder, *folder.rglob("*")]))


def _orbax_keys(arrays: Arrays) -> dict[tuple[str, str], tuple[str, str]]:
    """The two keys of each leaf in orbax's tree; with a dot between them they are the name of its folder.

    A leaf may have any name. A folder's has no slash, at most 255 bytes, on some systems no case, and not
    the ending of TensorStore's lock files.
    """
    keys: dict[tuple[str, str], tuple[str, str]] = {}
    used: set[str] = set()
    for i, (item, leaf) in enumerate(arrays):
        first, second = quote(item, SAFE).replace(".", "%2E"), quote(leaf, SAFE)
        name = f"{first}.{second}".casefold()
        if len(name) > LONGEST or name in used or name.endswith(".__lock"):
            first, second = first[: LONGEST // 4], f"{second[: LONGEST // 2]}#{i}"  # `quote` leaves no #
        used.add(name)
        keys[item, leaf] = first, second
    return keys


def _file_of(step: Path, name: str, nbytes: int) -> str:
    """The one file of a leaf that holds its bytes; the notes beside it begin with a dot."""
    files = list((step / ARRAYS / name).glob("[!.]*"))
    if [file.stat().st_size for file in files] != [nbytes]:
        raise RuntimeError(f"orbax {ocp.__version__} did not write {name} as one file of {nbytes} bytes")
    return f"{ARRAYS}/{name}/{files[0].name}"


def _write_tree(folder: Path, tree: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    leaves = _Leaves()
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_compression=False,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry((np.ndarray, leaves)),
    )
    with _quiet():
        handler.save(folder, args=ocp.args.PyTreeSave(tree))
    for error in leaves.errors:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else error


class _Leaves(ocp.type_handlers.NumpyHandler):
    """Tries every leaf before it fails.

    NumpyHandler's own way is to stop at the first error, on a full disk say, while TensorStore still writes
    other leaves: each of those prints a traceback, and fills a folder that was removed. Should another
    version of orbax not call `_open_and_write`, just this comes back.
    """

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)  # nothing changes them, `on_host` has seen to it
        self.errors: list[Exception] = []

    async def _open_and_write(self, *args: object) -> None:
        try:
            await super()._open_and_write(*args)
        except Exception as error:
            self.errors.append(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps orbax's pages out of the log; what went wrong is in the error that is raised."""

    def is_foreign(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    log = logging.getLogger("absl")
    log.addFilter(is_foreign)
    try:
        yield
    finally:
        log.removeFilter(is_foreign)
