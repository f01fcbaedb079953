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
from .item import Leaf
from .plain import decode, is_key
from .step import SavedArray, SavedValue
from .warn import warn

MOST = 5
"""Leaves that an error lists."""

Spec: TypeAlias = "tuple[tuple[int, ...], str] | None"
"""Shape and dtype of an array; None for any other value."""


def fit(
    item: str, leaves: Mapping[str, Leaf], saved: Mapping[str, Spec], at: Path, strict: bool
) -> dict[str, str]:
    """What an object's leaves are called in the checkpoint at `at`.

    Raises CheckpointError if a leaf is only on one side, or has another shape or kind; another dtype is an
    error or, where `strict` is False, a warning.
    """
    whole = [name for name, leaf in leaves.items() if leaf.whole]
    if whole and whole[0] in saved:
        return {name: name for name in whole}  # the arrays beside it are parts of it
    names = _matched(item, leaves, saved, at)
    for name, leaf in leaves.items():
        _check_same(
            f"Checkpointer.restore: {item}: {name}", _spec(leaf.value), saved[names[name]], at, strict
        )
    return names


def _check_same(name: str, here: Spec, there: Spec, at: Path, strict: bool) -> None:
    if here == there:
        return
    if here is None or there is None:
        ours, theirs = ("a number, text or None" if spec is None else "an array" for spec in (here, there))
        raise CheckpointError(f"{name} is {ours} here and {theirs} in {at}.")
    if here[0] != there[0]:
        raise CheckpointError(
            f"{name} has shape {here[0]} here and {there[0]} in {at}. Nothing was restored; build the object "
            "as it was when the step was saved."
        )
    text = f"{name} is {here[1]} here and {there[1]} in {at}"
    if strict or "key" in here[1] + there[1]:
        raise CheckpointError(
            f"{text}. Nothing was restored; build the object with that dtype, or allow the conversion with "
            "strict_dtype=False."
        )
    warn(f"{text}; it is converted.")


def _matched(item: str, here: Iterable[str], there: Iterable[str], at: Path) -> dict[str, str]:
    """By name, and where that fails by the name without the `module` that a wrapper puts into it.

    torch's users strip `module.` by hand, when a checkpoint of a wrapped net goes into a bare one.
    """
    here, there = list(here), set(there)
    if set(here) == there:
        return {name: name for name in here}
    ours, theirs = _bare(here), _bare(there)
    if len(set(ours.values())) == len(ours) and len(set(theirs.values())) == len(theirs):
        back = {bare: name for name, bare in theirs.items()}
    else:
        ours, back = {name: name for name in here}, {name: name for name in there}
    missing = [name for name in here if ours[name] not in back]
    extra = sorted(set(back) - set(ours.values()))
    if missing or extra:
        raise CheckpointError(
            f"Checkpointer.restore: {item} is another object than the one in {at}. Only here: "
            f"{_some(missing)}; only there: {_some([back[name] for name in extra])}. Nothing was restored."
        )
    return {name: back[ours[name]] for name in here}


def _bare(names: Iterable[str]) -> dict[str, str]:
    return {name: ".".join(part for part in name.split(".") if part != "module") for name in names}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more or "nothing"


def _spec(value: PyTree) -> Spec:
    if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return tuple(value.shape), str(value.dtype)
    return None


def saved_specs(arrays: Mapping[str, SavedArray], small: Mapping[str, SavedValue]) -> dict[str, Spec]:
    """The specs of all leaves of an item in a manifest, whose entries stand in for large arrays."""
    found: dict[str, Spec] = {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in arrays.items()}
    return found | {name: _spec(decode(entry["value"], arrays)) for name, entry in small.items()}


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
