"""Write a step: orbax writes the arrays, this module the manifest.

No other module imports orbax, so reading does not need it. Orbax's Checkpointer has barriers, which rank 0
alone would not pass.
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
from .step import ARRAYS, FORMAT, MANIFEST, THREADS, Arrays, Manifest, Metric, Parts, State, digest, flush

SAFE, LONGEST = " !$&'()+,;=@[]^{}", 200
"""Characters allowed in a folder name besides letters, digits and `_.-~`, and its length."""


def write_step(
    folder: Path,
    step: int,
    arrays: Arrays,
    states: list[State],
    parts: Parts | None = None,
    metric: Metric | None = None,
) -> None:
    manifest: Manifest = {"format": FORMAT, "step": step, "arrays": {}, "states": states, "parts": parts}
    if metric is not None:
        manifest["metric"] = metric
    keys = _orbax_keys(arrays)
    tree: dict[str, dict[str, np.ndarray]] = {}
    for at, (first, second) in keys.items():
        # TensorStore lacks some dtypes, such as datetime64; those arrays are written as bytes.
        has_dtype = hasattr(ts, arrays[at].dtype.name)
        tree.setdefault(first, {})[second] = arrays[at] if has_dtype else flat_bytes(arrays[at])
    with ThreadPoolExecutor(THREADS) as pool:
        # Hash the memory, not the written files, to detect write errors; this overlaps with writing.
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
        # Flush at the end: one journal commit covers all files, instead of one commit per file.
        list(pool.map(flush, [folder, *folder.rglob("*")]))


def _orbax_keys(arrays: Arrays) -> dict[tuple[str, str], tuple[str, str]]:
    """Map each leaf to its two keys in orbax's tree, which a dot joins into its folder name."""
    # Leaf names are arbitrary. Folder names have no slashes and at most 255 bytes, may be case-insensitive,
    # and must not end like TensorStore's lock files.
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
    files = list((step / ARRAYS / name).glob("[!.]*"))
    if [file.stat().st_size for file in files] != [nbytes]:
        raise RuntimeError(f"orbax {ocp.__version__} did not write {name} as one file of {nbytes} bytes")
    return f"{ARRAYS}/{name}/{files[0].name}"


def _write_tree(folder: Path, tree: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    leaves = _Leaves()
    with quiet():  # making the handler warns too, that the registry has no jax.Array
        handler = ocp.PyTreeCheckpointHandler(
            use_ocdbt=False,
            use_compression=False,
            type_handler_registry=ocp.type_handlers.create_type_handler_registry((np.ndarray, leaves)),
        )
        handler.save(folder, args=ocp.args.PyTreeSave(tree))
    for error in leaves.errors:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else error


class _Leaves(ocp.type_handlers.NumpyHandler):
    """A handler that tries all leaves before failing."""

    # NumpyHandler stops at the first error, for example on a full disk, while TensorStore is still writing
    # other leaves: each of those prints a traceback and writes to a folder that was removed. A version of
    # orbax that does not call `_open_and_write` only brings this behaviour back.

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)  # `on_host` has copied them
        self.errors: list[Exception] = []

    async def _open_and_write(self, *args: object) -> None:
        try:
            await super()._open_and_write(*args)
        except Exception as error:
            self.errors.append(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    def is_foreign(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    log = logging.getLogger("absl")
    log.addFilter(is_foreign)
    try:
        yield
    finally:
        log.removeFilter(is_foreign)
