"""Does a checkpoint fit the objects that it is to go into? Names, shapes and dtypes, leaf by leaf.

Only the manifest is read for it, so a checkpoint that claims a giant shape is refused before anything of that
size is made. torch's `load_state_dict` compares names and shapes too, but casts dtypes without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._typing import PyTree
from ..errors import CheckpointError
from .item import ItemLeaf
from .json_values import decode, is_key
from .step import SavedArray, SavedValue
from .warn import warn

MAX_LISTED = 5
"""Leaves that an error lists."""

Spec: TypeAlias = "tuple[tuple[int, ...], str] | None"
"""Shape and dtype of an array; None for any other value."""


def fit(
    item: str, leaves: Mapping[str, ItemLeaf], saved: Mapping[str, Spec], path: Path, strict: bool
) -> dict[str, str]:
    """What an object's leaves are called in the checkpoint at `at`.

    Raises CheckpointError if a leaf is only on one side, or has another shape or kind; another dtype is an
    error or, where `strict` is False, a warning.
    """
    opaque = [name for name, leaf in leaves.items() if leaf.opaque]
    if opaque and opaque[0] in saved:
        return {name: name for name in opaque}  # the arrays beside it are parts of it
    names = _matched(item, leaves, saved, path)
    for name, leaf in leaves.items():
        _check_same(
            f"Checkpointer.restore: {item}: {name}", _spec(leaf.value), saved[names[name]], path, strict
        )
    return names


def _check_same(name: str, live: Spec, saved: Spec, path: Path, strict: bool) -> None:
    if live == saved:
        return
    if live is None or saved is None:
        live_kind, saved_kind = (
            "a number, text or None" if spec is None else "an array" for spec in (live, saved)
        )
        raise CheckpointError(f"{name} is {live_kind} here and {saved_kind} in {path}.")
    if live[0] != saved[0]:
        raise CheckpointError(
            f"{name} has shape {live[0]} here and {saved[0]} in {path}. Nothing was restored; build the "
            "object as it was when the step was saved."
        )
    text = f"{name} is {live[1]} here and {saved[1]} in {path}"
    if strict or "key" in live[1] + saved[1]:
        raise CheckpointError(
            f"{text}. Nothing was restored; build the object with that dtype, or allow the conversion with "
            "strict_dtype=False."
        )
    warn(f"{text}; it is converted.")


def _matched(item: str, live: Iterable[str], saved: Iterable[str], path: Path) -> dict[str, str]:
    """By name, and where that fails by the name without the `module` that a wrapper puts into it.

    torch's users strip `module.` by hand, when a checkpoint of a wrapped net goes into a bare one.
    """
    live, saved = list(live), set(saved)
    if set(live) == saved:
        return {name: name for name in live}
    live_bare, saved_bare = _bare(live), _bare(saved)
    if len(set(live_bare.values())) == len(live_bare) and len(set(saved_bare.values())) == len(saved_bare):
        saved_by_bare = {bare: name for name, bare in saved_bare.items()}
    else:
        live_bare, saved_by_bare = {name: name for name in live}, {name: name for name in saved}
    only_live = [name for name in live if live_bare[name] not in saved_by_bare]
    only_saved = sorted(set(saved_by_bare) - set(live_bare.values()))
    if only_live or only_saved:
        raise CheckpointError(
            f"Checkpointer.restore: {item} is another object than the one in {path}. Only here: "
            f"{_listed(only_live)}; only there: {_listed([saved_by_bare[name] for name in only_saved])}. "
            "Nothing was restored."
        )
    return {name: saved_by_bare[live_bare[name]] for name in live}


def _bare(names: Iterable[str]) -> dict[str, str]:
    return {name: ".".join(part for part in name.split(".") if part != "module") for name in names}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more or "nothing"


def _spec(value: PyTree) -> Spec:
    if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return tuple(value.shape), str(value.dtype)
    return None


def saved_specs(arrays: Mapping[str, SavedArray], small: Mapping[str, SavedValue]) -> dict[str, Spec]:
    """The specs of all leaves of an item in a manifest, whose entries stand in for large arrays."""
    specs: dict[str, Spec] = {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in arrays.items()}
    return specs | {name: _spec(decode(entry["value"], arrays)) for name, entry in small.items()}


def like(old: PyTree, new: PyTree) -> PyTree:
    """A value from a checkpoint, of the dtype and on the devices of the one that it replaces."""
    if isinstance(old, np.ndarray):
        return np.asarray(new).astype(old.dtype, copy=False)
    if not isinstance(old, (jax.Array, jax.ShapeDtypeStruct)):
        return new
    if not is_key(old):
        new = np.asarray(new).astype(old.dtype, copy=False)
    # device_put would tie an uncommitted array to a device, and JAX refuses to mix those.
    if old.sharding is None or not getattr(old, "committed", True):
        return jnp.asarray(new)
    if not old.sharding.is_fully_addressable:
        return jax.make_array_from_callback(old.shape, old.sharding, lambda index: new[index])
    return jax.device_put(new, old.sharding)
