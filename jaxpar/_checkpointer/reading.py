"""Which step is read, and its values for every leaf, all of them before the first item changes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from .._typing import PyTree
from ..errors import CheckpointError
from .fit import fit, like, saved_specs
from .item import Item, Leaf
from .plain import decode
from .ranks import own
from .step import Damage, read_arrays, read_manifest
from .store import Store

Values: TypeAlias = "dict[str, dict[str, PyTree]]"
"""By item and leaf."""


def read_step(store: Store, step: int | None, items: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    """A step, or the newest one that is whole; warns of newer ones that are not.

    Raises:
      CheckpointError: there is none; damaged; another object than the one that was saved.
    """
    return _newest(store, items, strict) if step is None else _exactly(store, step, items, strict)


def _newest(store: Store, items: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    steps, reasons = store.steps(), []
    if not steps:
        raise CheckpointError(
            f"Checkpointer.restore: there is no step in {store.directory}{_holds(store.directory)}; ask "
            "`latest_step() is not None` first."
        )
    for step in reversed(steps):
        try:
            return step, _values(store.path(step), items, strict)
        except Damage as damage:
            warnings.warn(
                f"Checkpointer.restore: step {step} is damaged and is passed over: {damage}.", stacklevel=4
            )
            reasons.append(damage)
    raise CheckpointError(
        f"Checkpointer.restore: every step in {store.directory} is damaged: {', '.join(map(str, steps))}. "
        f"Step {steps[-1]}: {reasons[0]}."
    )


def _exactly(store: Store, step: int, items: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    steps = store.steps()
    if step not in steps:
        there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise CheckpointError(f"Checkpointer.restore: there is no step {step} in {store.directory}; {there}.")
    try:
        return step, _values(store.path(step), items, strict)
    except Damage as damage:
        raise CheckpointError(
            f"Checkpointer.restore: step {step} in {store.directory} is damaged: {damage}. restore() "
            "without a step takes the newest one that is not."
        ) from None


def _values(path: Path, items: Mapping[str, Item], strict: bool) -> Values:
    """New values for every leaf of every item. Raises Damage or CheckpointError."""
    manifest = read_manifest(path)
    leaves = {name: item.leaves() for name, item in items.items()}
    with _well_formed():
        absent = [name for name in items if name not in manifest["arrays"]]
        if absent:
            raise CheckpointError(
                f"Checkpointer.restore: {path} has no item {absent[0]!r}; it has "
                f"{', '.join(map(repr, manifest['arrays']))}."
            )
        small = {name: own(manifest["states"], name) for name in items}
        specs = {name: saved_specs(manifest["arrays"][name], small[name]) for name in items}
    names = {}
    for name in items:
        names[name] = fit(name, leaves[name], specs[name], str(path), strict)
    with _well_formed():
        arrays = read_arrays(path, manifest, items)
        decoded = {
            name: {leaf: decode(entry["value"], arrays[name]) for leaf, entry in small[name].items()}
            for name in items
        }
    values = {name: decoded[name] | arrays[name] for name in items}
    return {
        name: {leaf: _placed(old, values[name][names[name][leaf]]) for leaf, old in leaves[name].items()}
        for name in items
    }


def _placed(old: Leaf, new: PyTree) -> PyTree:
    return new if old.whole else like(old.value, new)


@contextlib.contextmanager
def _well_formed() -> Iterator[None]:
    # The manifest has the bytes that were written, so only a writer with a fault comes here.
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Damage(f"its manifest makes no sense: {type(error).__name__}: {error}") from None


def _holds(directory: Path) -> str:
    """For the error about a folder without steps."""
    if not directory.is_dir():
        return ", which does not exist"
    others = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))[:5]
    return f" (it holds {', '.join(others)})" if others else ", which is empty"
