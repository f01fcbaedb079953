"""Which step is read, and new values for every leaf before the first item changes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    leaves = {name: item.leaves() for name, item in held.items()}
    with _well_formed():
        absent = [name for name in held if name not in manifest["items"]]
        if absent:
            raise CheckpointError(
                f"Checkpointer.restore: {path} has no item {absent[0]!r}; it has "
                f"{', '.join(map(repr, manifest['items']))}."
            )
        small = {name: own(manifest["states"], name) for name in held}
        saved = {name: saved_specs(manifest["items"][name]["arrays"], small[name]) for name in held}
        values = {name: {leaf: decode(at["value"]) for leaf, at in small[name].items()} for name in held}
    names = {name: fit(name, leaves[name], saved[name], str(path), strict) for name in held}
    for name, arrays in store.arrays(step, manifest, list(held)).items():
        values[name] |= arrays
    return {
        name: {leaf: _fitted(values[name][names[name][leaf]], old) for leaf, old in leaves[name].items()}
        for name in held
    }


def _fitted(new: Any, old: Leaf) -> Any:
    return new if old.whole else like(old.value, new)


@contextlib.contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Damage(f"its manifest makes no sense: {type(error).__name__}: {error}") from None


def _holds(directory: Path) -> str:
    """For the error about a folder without steps."""
    if not directory.is_dir():
        return ", which does not exist"
    others = sorted(path.name for path in directory.iterdir())[:5]
    return f" (it holds {', '.join(others)})" if others else ", which is empty"
