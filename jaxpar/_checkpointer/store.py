"""Steps in a directory, by orbax: written whole or not at all, read and checked.

Only rank 0 writes, so orbax is told of one process and needs no barrier; every process reads for
itself, by TensorStore. The errors of both are pages of state, so what leaves here is their first words.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from ..errors import CheckpointError
from .manifest import ARRAYS, MANIFEST, Damage, ManifestArgs, ManifestHandler, check_files, digest

ALONE = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix="jaxpar"
)
MOST = 3
"""Damaged leaves that an error lists."""

CACHE = 1 << 26
"""Bytes of the index that are kept while one step is read."""

MARGIN = 1 << 20
"""Bytes for what is written beside the arrays."""

HostArrays: TypeAlias = "dict[str, dict[str, np.ndarray]]"
Values: TypeAlias = "dict[str, dict[str, Any]]"
"""Both by item and leaf."""


class Store:
    def __init__(self, directory: Path, max_to_keep: int | None):
        self.directory, self._max_to_keep = directory, max_to_keep
        self._manager: ocp.CheckpointManager | None = None
        if directory.exists() and not directory.is_dir():
            raise CheckpointError(f"Checkpointer: {directory} is a file; give a folder for the steps.")

    def steps(self) -> list[int]:
        """The steps that are complete, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(int(p.name) for p in self.directory.iterdir() if p.name.isdigit() and p.is_dir())

    def path(self, step: int) -> Path:
        return self.directory / str(step)

    # ------------------------------------------------------------------------------------------ writing

    def check_space(self, step: int, nbytes: int) -> None:
        """Raises CheckpointError if the bytes do not fit on the disk."""
        free = shutil.disk_usage(self.directory).free
        if nbytes + MARGIN > free:
            raise CheckpointError(f"{self._full(step, nbytes)} {self._kept()}")

    def open(self) -> None:
        """Makes the directory and removes what a killed process left of an unfinished step.

        Not before the first step is saved: whoever only reads must not remove what another process writes.
        """
        if self._manager is not None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"Checkpointer.save: {self.directory} cannot be made: {error.strerror}."
            ) from None
        self._manager = ocp.CheckpointManager(
            self.directory,
            item_handlers={
                ARRAYS: ocp.PyTreeCheckpointHandler(multiprocessing_options=ALONE, use_compression=False),
                MANIFEST: ManifestHandler(multiprocessing_options=ALONE),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=self._max_to_keep,
                create=False,
                cleanup_tmp_directories=True,
                enable_async_checkpointing=False,  # `background` has the thread, and the digests in it
                multiprocessing_options=ALONE,
            ),
        )

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def discard(self, step: int) -> None:
        """Removes a step; orbax learns of it when it is opened again."""
        self.close()
        shutil.rmtree(self.path(step), ignore_errors=True)

    def write(self, step: int, arrays: HostArrays, manifest: Mapping[str, Any]) -> None:
        """Writes a step, then removes the oldest ones.

        Raises:
          CheckpointError: it could not be written; all earlier steps are as they were.
        """
        parts: dict[str, Any] = {MANIFEST: ManifestArgs(manifest)}
        tree = {item: dict(leaves) for item, leaves in arrays.items() if leaves}
        if tree:
            parts[ARRAYS] = ocp.args.PyTreeSave(tree)
        try:
            self.open()
            assert self._manager is not None
            with _Quiet():
                self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
        except Exception as error:
            self.close()
            for left in self.directory.glob(f"{step}.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)  # or it would go on filling the disk
            text = str(error)
            nbytes = sum(x.nbytes for leaves in tree.values() for x in leaves.values())
            if "RESOURCE_EXHAUSTED" in text or "No space left" in text or "File too large" in text:
                raise CheckpointError(f"{self._full(step, nbytes)} {self._kept()}") from None
            raise CheckpointError(
                f"Checkpointer.save: step {step} could not be written to {self.directory}: {_short(error)}. "
                f"{self._kept()}"
            ) from None

    def _full(self, step: int, nbytes: int) -> str:
        free = shutil.disk_usage(self.directory).free
        return (
            f"Checkpointer.save: the disk is full: step {step} needs {nbytes + MARGIN:,} bytes, and "
            f"{self.directory} has {free:,} free."
        )

    def _kept(self) -> str:
        steps = self.steps()
        return f"Steps on disk: {', '.join(map(str, steps)) if steps else 'none'}."

    # ------------------------------------------------------------------------------------------ reading

    def arrays(self, step: int, manifest: Mapping[str, Any], wanted: list[str]) -> dict[str, dict[str, Any]]:
        """The arrays of some items, every byte of the step and every leaf checked.

        Raises:
          Damage: something is not what was written.
        """
        entries = {item: manifest["items"][item]["arrays"] for item in wanted}
        entries = {item: leaves for item, leaves in entries.items() if leaves}
        try:
            check_files(self.path(step))
        except Damage as damage:
            raise Damage(f"{damage}{self._leaves_hurt(step, entries)}") from None
        return self._read(step, entries) if entries else {}

    def _read(self, step: int, entries: Mapping[str, Any]) -> Values:
        """All at once by TensorStore, as orbax reads them, but without its event loop: where one leaf
        cannot be read, that prints pages about all the others."""
        folder, context = self.path(step) / ARRAYS, ts.Context({"cache_pool": {"total_bytes_limit": CACHE}})
        leaves = {(item, name): entry for item, each in entries.items() for name, entry in each.items()}
        opening = {key: ts.open(_spec(folder, ".".join(key)), context=context) for key in leaves}
        opened = {key: _result(key, future) for key, future in opening.items()}
        for key, array in opened.items():
            _check_claims(key, array, leaves[key])
        reading = {key: array.read() for key, array in opened.items()}
        found: Values = {item: {} for item in entries}
        for key, future in reading.items():
            item, name = key
            found[item][name] = _result(key, future)
            if digest(found[item][name]) != leaves[key]["sha256"]:
                raise Damage(f"{item}: {name} has other values than were saved")
        return found

    def _leaves_hurt(self, step: int, entries: Mapping[str, Any]) -> str:
        """Which leaves a damaged file has hurt, for the message."""
        hurt = []
        for item, leaves in entries.items():
            for name, entry in leaves.items():
                try:
                    self._read(step, {item: {name: entry}})
                except Damage:
                    hurt.append(f"{item}: {name}")
                if len(hurt) > MOST:
                    return f" (leaves {', '.join(hurt[:MOST])} and more)"
        return f" (leaf {', '.join(hurt)})" if hurt else " (bytes that none of these leaves is in)"


def _spec(folder: Path, name: str) -> dict[str, Any]:
    """Where orbax keeps a leaf."""
    kvstore = {"driver": "ocdbt", "base": f"file://{folder}/", "path": f"{name}/"}
    return {"driver": "zarr", "kvstore": kvstore}


def _result(key: tuple[str, str], future: Any) -> Any:
    try:
        return future.result()
    except Exception as error:
        raise Damage(f"{key[0]}: {key[1]} cannot be read: {_short(error)}") from None


def _check_claims(key: tuple[str, str], array: Any, entry: Mapping[str, Any]) -> None:
    """What an array's own header says, against the manifest, before anything is allocated.

    TensorStore ends the process where it cannot allocate.
    """
    item, name = key
    shape, chunk = list(array.shape), list(array.chunk_layout.read_chunk.shape or ())
    dtype = array.dtype.numpy_dtype.name
    if shape != entry["shape"] or dtype != entry["dtype"]:
        raise Damage(
            f"{item}: {name} claims to be {dtype}{shape} and was saved as {entry['dtype']}{entry['shape']}"
        )
    if math.prod(chunk) > math.prod(shape):
        raise Damage(f"{item}: {name} claims chunks of {chunk} for {shape}")


class _Quiet(logging.Filter):
    """Keeps orbax's tracebacks out of the log: what happened is in the error that is raised."""

    def __enter__(self) -> None:
        logging.getLogger("absl").addFilter(self)

    def __exit__(self, *_: Any) -> None:
        logging.getLogger("absl").removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'...' if len(text) > 160 else ''}"
