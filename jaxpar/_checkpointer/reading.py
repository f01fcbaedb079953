"""Restore a step: everything is read and compared before the first object changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .._devices.context import Outside
from .._typing import PyTree
from ..errors import CheckpointError
from .fit import fit, like, saved_specs
from .item import Item, ItemLeaf, StatefulItem, TreeItem, item_of
from .json_values import decode
from .ranks import agree, rank, rank_values
from .step import Damage, read_arrays, read_manifest
from .store import Store
from .warn import warn

Values: TypeAlias = "dict[str, dict[str, PyTree]]"
"""Values by item and leaf."""


class Restored(NamedTuple):
    """The result of `Checkpointer.restore`: the step number, and the items that are trees.

    >>> import jaxpar
    >>> jaxpar.Restored(4, {}).next
    5
    """

    step: int
    trees: dict[str, PyTree]

    @property
    def next(self) -> int:
        """The step to continue with, one after the restored step, which was complete when saved."""
        return self.step + 1


def restore(store: Store, step: int | None, items: Mapping[str, PyTree], strict_dtype: bool) -> Restored:
    targets = {name: item_of(name, target) for name, target in items.items()}
    values: Values = {}

    def read(wanted_step: int | None) -> int:
        read_number, new = read_step(store, wanted_step, targets, strict_dtype)
        values.update(new)
        return read_number

    answers = agree("Checkpointer.restore", store.directory, lambda: read(step) if rank() == 0 else -1)
    chosen = answers[0]
    # Rank 0 alone chooses the step: on a failing disk each rank might choose a different one.
    if len(answers) > 1:
        agree("Checkpointer.restore: read", store.directory, lambda: rank() == 0 or read(chosen))
    # Restore items that can reject their state first, so that a rejection leaves everything unchanged.
    order = sorted(targets, key=lambda name: not isinstance(targets[name], StatefulItem))
    put = {name: targets[name].put(values[name]) for name in order}
    return Restored(chosen, {name: put[name] for name in targets if isinstance(targets[name], TreeItem)})


def read_step(store: Store, step: int | None, items: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    steps = store.steps()
    if step is None:
        return _newest(store, steps, items, strict)
    if step not in steps:
        existing = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise CheckpointError(
            f"Checkpointer.restore: there is no step {step} in {store.directory}; {existing}."
        )
    try:
        return step, _values(store.path(step), items, strict)
    except Damage as damage:
        raise CheckpointError(
            f"Checkpointer.restore: step {step} in {store.directory} is damaged: {damage}. restore() "
            "without a step takes the newest one that is not."
        ) from None


def _newest(store: Store, steps: list[int], items: Mapping[str, Item], strict: bool) -> tuple[int, Values]:
    if not steps:
        raise CheckpointError(
            f"Checkpointer.restore: there is no step in {store.directory}{_holds(store.directory)}; ask "
            "`latest_step() is not None` first."
        )
    damages = []
    for step in reversed(steps):
        try:
            return step, _values(store.path(step), items, strict)
        except Damage as damage:
            warn(f"Checkpointer.restore: step {step} is damaged and is passed over: {damage}.")
            damages.append(damage)
    raise CheckpointError(
        f"Checkpointer.restore: every step in {store.directory} is damaged: {', '.join(map(str, steps))}. "
        f"Step {steps[-1]}: {damages[0]}."
    )


def _values(path: Path, items: Mapping[str, Item], strict: bool) -> Values:
    leaves = {name: item.leaves() for name, item in items.items()}
    try:
        by_item = _read(path, leaves, strict)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # The manifest matches its digest, so only a faulty writer can cause this.
        raise Damage(f"its manifest makes no sense: {type(error).__name__}: {error}") from None
    with Outside():  # where an array that is not committed would go to the context's mesh
        for name, values in by_item.items():
            for leaf, old in leaves[name].items():
                if not old.opaque:
                    values[leaf] = like(old.value, values[leaf])
    return by_item


def _read(path: Path, items: Mapping[str, Mapping[str, ItemLeaf]], strict: bool) -> Values:
    manifest = read_manifest(path)
    small, names = {}, {}
    for item, leaves in items.items():
        if item not in manifest["states"][0]:
            raise CheckpointError(
                f"Checkpointer.restore: {path} has no item {item!r}; it has "
                f"{', '.join(map(repr, manifest['states'][0]))}."
            )
        small[item] = rank_values(path, manifest, item)
        specs = saved_specs(manifest["arrays"].get(item, {}), small[item])
        names[item] = fit(item, leaves, specs, path, strict)
    by_item = read_arrays(path, manifest, items)
    for item, values in by_item.items():
        values |= {leaf: decode(entry["value"], values) for leaf, entry in small[item].items()}
    return {
        item: {leaf: by_item[item][saved_leaf] for leaf, saved_leaf in names[item].items()} for item in items
    }


def _holds(directory: Path) -> str:
    if not directory.is_dir():
        return ", which does not exist"
    others = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))[:5]
    return f" (it holds {', '.join(others)})" if others else ", which is empty"
