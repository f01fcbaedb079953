"""Which step is read, and new values for every leaf before the first item changes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .fit import fit, like, saved_specs
from .item import Item, Leaf
from .manifest import Damage, read_manifest
from .plain import decode
from .ranks import own
from .store import Store, Values


def newest(store: Store, held: Mapping[str, Item], strict: bool, damaged: set[int]) -> tuple[int, Values]:
    """The newest step that is whole; warns of newer ones that are not, and adds them to `damaged`."""
    steps = store.steps()
    if not steps:
        raise CheckpointError(
            f"Checkpointer.restore: there is no step in {store.directory}{_holds(store.directory)}; ask "
            "`latest_step() is not None` first."
        )
    for step in reversed(steps):
        try:
            return step, _values(store, step, held, strict)
        except Damage as damage:
            warnings.warn(
                f"Checkpointer.restore: step {step} is damaged and is passed over: {damage}.",
                stacklevel=4,
            )
            damaged.add(step)
    raise CheckpointError(
        f"Checkpointer.restore: every step in {store.directory} is damaged: {', '.join(map(str, steps))}."
    )


def exactly(store: Store, step: int, held: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    """One step and no other."""
    steps = store.steps()
    if step not in steps:
        there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise CheckpointError(f"Checkpointer.restore: there is no step {step} in {store.directory}; {there}.")
    try:
        return step, _values(store, step, held, strict)
    except Damage as damage:
        raise CheckpointError(
            f"Checkpointer.restore: step {step} in {store.directory} is damaged: {damage}. restore() "
            "without a step takes the newest one that is not."
        ) from None


def _values(store: Store, step: int, held: Mapping[str, Item], strict: bool) -> Values:
    """New values for every leaf of every item. Raises Damage or CheckpointError."""
    path = store.path(step)
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"Checkpointer.restore: {path} was not written by jaxpar.Checkpointer: it has no manifest."
        ) from None
    absent = [name for name in held if name not in manifest["items"]]
    if absent:
        raise CheckpointError(
            f"Checkpointer.restore: {path} has no item {absent[0]!r}; it has "
            f"{', '.join(map(repr, manifest['items']))}."
        )
    leaves, names, small = {}, {}, {}
    for name, item in held.items():
        leaves[name] = item.leaves()
        small[name] = own(manifest["states"], name)
        saved = saved_specs(manifest["items"][name]["arrays"], small[name])
        names[name] = fit(name, leaves[name], saved, str(path), strict)
    arrays = store.arrays(step, manifest, list(held))
    return {
        name: {
            leaf: _value(arrays.get(name, {}), small[name], names[name][leaf], old)
            for leaf, old in leaves[name].items()
        }
        for name in held
    }


def _value(arrays: Mapping[str, np.ndarray], small: Mapping[str, Any], name: str, old: Leaf) -> Any:
    new = arrays[name] if name in arrays else decode(small[name]["value"])
    return new if old.whole else like(old.value, new)


def _holds(directory: Path) -> str:
    """For the error about a folder without steps."""
    if not directory.is_dir():
        return ", which does not exist"
    others = sorted(path.name for path in directory.iterdir())[:5]
    return f" (it holds {', '.join(others)})" if others else ", which is empty"
