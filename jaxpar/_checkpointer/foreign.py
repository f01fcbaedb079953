"""Read what orbax's savers and Flax's msgpack wrote, as a tree of host arrays and numbers.

Arrays come as NumPy's, wherever the devices were on which they lay when they were saved.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._typing import PyTree
from ..errors import CheckpointError
from .step import ARRAYS, MANIFEST

TREE, JSON_ITEM, STEP_METADATA = "_METADATA", "metadata", "_CHECKPOINT_METADATA"
"""The files by which a folder is recognised as orbax's tree, as an item of `JsonSave`, and as a step."""

STEP = re.compile(r"(?:.*_)?(\d+)")
"""The name of a step of `CheckpointManager`, perhaps with its prefix, or of `flax.training.checkpoints`."""


def read_foreign(
    source: PyTree, function: str, ignored: Callable[[str], bool], top: Collection[str]
) -> tuple[PyTree, str]:
    """Return the tree in a path, in msgpack's bytes, or given as it is, and how an error names the source.

    `ignored` items are not read, and `top` holds the names at the first level of the tree that is needed.
    """
    if isinstance(source, (bytes, bytearray)):
        return _msgpack(bytes(source), "the bytes", function), "the bytes"
    if not isinstance(source, (str, os.PathLike)):
        return source, "source"
    path = Path(os.path.abspath(os.fspath(source)))
    if path.is_file():
        return _msgpack(path.read_bytes(), str(path), function), str(path)
    if not path.is_dir():
        raise CheckpointError(f"{function}: {path} does not exist.")
    return _folder(path, function, ignored, top)


def _folder(
    path: Path, function: str, ignored: Callable[[str], bool], top: Collection[str]
) -> tuple[PyTree, str]:
    if (path / TREE).exists():
        return _orbax_tree(path), str(path)
    is_step = (path / STEP_METADATA).exists()
    numbers = {} if is_step else {child: STEP.fullmatch(child.name) for child in path.iterdir()}
    steps = [(int(number[1]), child) for child, number in numbers.items() if number]
    newest = max(steps)[1] if steps else path
    if any((folder / MANIFEST).exists() and (folder / ARRAYS).exists() for folder in (path, newest)):
        raise CheckpointError(f"{function}: {path} is jaxpar.Checkpointer's; its `restore` reads it.")
    if newest is not path:
        return read_foreign(newest, function, ignored, top)
    items = [child for child in sorted(path.iterdir()) if child.is_dir() and not ignored(child.name)]
    if is_step or any((child / TREE).exists() for child in items):
        tree = {child.name: _item(child, function) for child in items}
        # An only item may have a name of orbax's: "default", "pytree" or "state", by version and interface.
        only = tree[items[0].name] if len(items) == 1 and items[0].name not in top else tree
        return only, str(path)
    files = ", ".join(sorted(child.name for child in path.iterdir())[:5]) or "nothing"
    raise CheckpointError(
        f"{function}: {path} is neither a checkpoint of orbax nor of flax.training.checkpoints; it holds "
        f"{files}. Give the folder that orbax's `save` was given, or a step of its CheckpointManager."
    )


def _item(path: Path, function: str) -> PyTree:
    if (path / TREE).exists():
        return _orbax_tree(path)
    if (path / JSON_ITEM).is_file():
        return json.loads((path / JSON_ITEM).read_text())
    raise CheckpointError(
        f"{function}: {path} is neither a tree nor JSON, but an item of another kind, such as a data "
        f"iterator; leave it out with ignore=[{path.name!r}]."
    )


def _orbax_tree(path: Path) -> PyTree:
    import orbax.checkpoint as ocp

    from .writing import quiet

    # The handler, because orbax's Checkpointer has barriers, which a rank alone would not pass.
    handler = ocp.PyTreeCheckpointHandler()

    def host_array(entry: Any) -> Any:
        # Only arrays: a number or a text has no type to be restored as.
        is_array = type(entry).__name__ == "ArrayMetadata"
        return ocp.RestoreArgs(restore_type=np.ndarray if is_array else None)

    with quiet():
        metadata: Any = handler.metadata(path)
        restore_args = jax.tree.map(host_array, getattr(metadata, "tree", metadata))
        return handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))


def _msgpack(data: bytes, where: str, function: str) -> PyTree:
    import msgpack
    from flax import serialization

    try:
        return serialization.msgpack_restore(data)
    except (msgpack.exceptions.UnpackException, ValueError) as error:
        raise CheckpointError(
            f"{function}: {where} cannot be read as Flax's msgpack ({type(error).__name__}: {error}). Files "
            "of torch are read by jaxpar.parity.load_checkpoint."
        ) from None
