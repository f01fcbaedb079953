"""Restore a step: everything is read and compared before the first object changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import warn
from .._devices.context import Outside
from .._typing import PyTree
from ..errors import CheckpointError
from .item import Item, ItemLeaf, StatefulItem, TreeItem, item_of
from .json_values import decode, dtype_of, is_key
from .ranks import agree, rank, rank_values
from .step import Damage, SavedArray, SavedValue, read_arrays, read_manifest
from .store import Store

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


# Only the manifest is compared, so a gigantic shape is refused before any such array is allocated.
MAX_LISTED = 5
"""Leaves that an error lists."""

Spec: TypeAlias = "tuple[tuple[int, ...], str] | bool | int | float | complex | None"
"""Shape and dtype of an array; a Python number; None for texts and objects."""

KINDS = {bool: np.bool_, int: np.integer, float: np.floating, complex: np.complexfloating}


def fit(
    item: str, leaves: Mapping[str, ItemLeaf], saved: Mapping[str, Spec], path: Path, strict: bool
) -> dict[str, str]:
    """Map an object's leaf names to their names in the checkpoint at `path`, or raise CheckpointError."""
    opaque = [name for name, leaf in leaves.items() if leaf.opaque]
    if opaque and opaque[0] in saved:
        # Large arrays of the state have entries of their own in `saved`, but belong to this leaf.
        return {name: name for name in opaque}
    names, only_live, only_saved = matched(leaves, saved)
    if only_live or only_saved:
        raise CheckpointError(
            f"Checkpointer.restore: {item} is another object than the one in {path}. Only here: "
            f"{listed(only_live)}; only there: {listed(only_saved)}. Nothing was restored."
        )
    for name, leaf in leaves.items():
        check_same(
            f"Checkpointer.restore: {item}: {name}", spec_of(leaf.value), saved[names[name]], path, strict
        )
    return names


def check_same(name: str, live: Spec, saved: Spec, path: Path | str, strict: bool) -> None:
    """Raise CheckpointError, or warn, if a leaf and its saved value differ in kind, shape or dtype."""
    if live == saved or not (isinstance(live, tuple) or isinstance(saved, tuple)):
        return
    if not isinstance(live, tuple) or not isinstance(saved, tuple):
        # A TrainState's step is the number 0 until a compiled step has counted.
        if isinstance(saved, tuple) and _counts_as(live, saved):
            return
        if isinstance(live, tuple) and _counts_as(saved, live) and _holds_exactly(live, saved):
            return
        raise CheckpointError(
            f"{name} is {_kind(live)} here and {_kind(saved)} in {path}. Nothing was restored; build the "
            "object as it was when the step was saved."
        )
    if live[0] != saved[0]:
        raise CheckpointError(
            f"{name} has shape {live[0]} here and {saved[0]} in {path}. Nothing was restored; build the "
            "object as it was when the step was saved."
        )
    text = f"{name} is {live[1]} here and {saved[1]} in {path}"
    # Converting a key to a different implementation would produce an unrelated random stream.
    if strict or "key" in live[1] + saved[1]:
        raise CheckpointError(
            f"{text}. Nothing was restored; build the object with that dtype, or allow the conversion with "
            "strict_dtype=False."
        )
    warn(f"{text}; it is converted.")


def _counts_as(number: Spec, array: tuple[tuple[int, ...], str]) -> bool:
    """Whether a Python number and an array without axes are of one kind: bool, int, float or complex."""
    kind = KINDS.get(type(number))
    if kind is None or array[0] or array[1].startswith("key"):
        return False
    return bool(jnp.issubdtype(dtype_of(array[1]), kind))


def _holds_exactly(array: tuple[tuple[int, ...], str], number: Spec) -> bool:
    with np.errstate(over="ignore"):
        converted = np.asarray(number).astype(dtype_of(array[1])).astype(np.asarray(number).dtype)
        return bool(converted == number)


def _kind(spec: Spec) -> str:
    if isinstance(spec, tuple):
        return f"an array of {spec[1]}{list(spec[0])}"
    return "text or None" if spec is None else f"the {type(spec).__name__} {spec}"


def matched(live: Iterable[str], saved: Iterable[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Match leaves by name, or else by name without the `module` that wrappers insert.

    Returns the name in the checkpoint of every leaf that has one, and the names that exist on one side only.
    """
    # Exact names first: a module that is really called `module` must not be confused with a wrapper. torch
    # users strip `module.` by hand.
    live, saved = list(live), set(saved)
    if set(live) == saved:
        return {name: name for name in live}, [], []
    live_bare, saved_bare = bare(live), bare(saved)
    if len(set(live_bare.values())) == len(live_bare) and len(set(saved_bare.values())) == len(saved_bare):
        saved_by_bare = {bare: name for name, bare in saved_bare.items()}
    else:
        # Two leaves have the same bare name, so only the full names are unambiguous.
        live_bare, saved_by_bare = {name: name for name in live}, {name: name for name in saved}
    only_live = [name for name in live if live_bare[name] not in saved_by_bare]
    only_saved = sorted(set(saved_by_bare) - set(live_bare.values()))
    names = {name: saved_by_bare[live_bare[name]] for name in live if live_bare[name] in saved_by_bare}
    return names, only_live, [saved_by_bare[name] for name in only_saved]


def bare(names: Iterable[str]) -> dict[str, str]:
    return {name: ".".join(part for part in name.split(".") if part != "module") for name in names}


def listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more or "nothing"


def spec_of(value: PyTree) -> Spec:
    if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return tuple(value.shape), str(value.dtype)
    return value if type(value) in KINDS else None


def saved_specs(arrays: Mapping[str, SavedArray], small: Mapping[str, SavedValue]) -> dict[str, Spec]:
    specs: dict[str, Spec] = {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in arrays.items()}
    return specs | {name: spec_of(decode(entry["value"], arrays)) for name, entry in small.items()}


def like(old: PyTree, new: PyTree) -> PyTree:
    if isinstance(old, np.ndarray):
        return np.asarray(new).astype(old.dtype, copy=False)
    if not isinstance(old, (jax.Array, jax.ShapeDtypeStruct)):
        if type(old) in KINDS and isinstance(new, np.ndarray):
            # As saved; with 32 bits JAX has no array that holds 64, and the number is exact.
            return jnp.asarray(new) if jax.dtypes.canonicalize_dtype(new.dtype) == new.dtype else new.item()
        return new
    if not is_key(old):
        new = np.asarray(new).astype(old.dtype, copy=False)
    # device_put would commit the array to a device, and JAX refuses to mix devices.
    if old.sharding is None or not getattr(old, "committed", True):
        return jnp.asarray(new)
    if not old.sharding.is_fully_addressable:
        return jax.make_array_from_callback(old.shape, old.sharding, lambda index: new[index])
    return jax.device_put(new, old.sharding)
