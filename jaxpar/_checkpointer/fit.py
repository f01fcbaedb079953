"""Compare a checkpoint with the objects to restore: names, shapes and dtypes, leaf by leaf.

Only the manifest is read, so a gigantic shape is refused before any such array is allocated.
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
from .json_values import decode, dtype_of, is_key
from .step import SavedArray, SavedValue
from .warn import warn

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
