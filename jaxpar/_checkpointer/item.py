"""What can be saved: NNX objects, pytrees, and whatever can give and take its own state.

An item has leaves by name. Those that are arrays go to orbax; numbers, texts and random streams are
small and may differ between processes, so they go into the manifest, see `ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from .._parallel.data_parallel import DataParallel
from .._training.distributed_data_parallel import DistributedDataParallel
from .._tree import is_array
from .._typing import PyTree
from ..errors import CheckpointError


class Leaf(NamedTuple):
    """A value; whether it belongs to a stream of random numbers; whether it is a whole state dict."""

    value: Any
    stream: bool = False
    whole: bool = False

    @property
    def heavy(self) -> bool:
        """Whether its bytes go to orbax, which takes no empty arrays and no random keys."""
        return is_array(self.value) and not (self.stream or self.whole) and self.value.size > 0


class Item(Protocol):
    """Something that is saved under one name."""

    name: str
    kind: str

    def leaves(self) -> dict[str, Leaf]:
        """All that is to be saved, by name."""

    def put(self, values: Mapping[str, Any]) -> Any:
        """Takes new values for all leaves; returns the tree, or None for what changed in place."""


def item_of(name: str, given: Any) -> Item:
    """The item of an argument of `save` or `restore`.

    Raises:
      CheckpointError: its state cannot be had.
    """
    inner = given
    while isinstance(inner, (DataParallel, DistributedDataParallel)):
        inner = inner.module  # so that a checkpoint does not depend on the wrapper
    if isinstance(inner, nnx.Pytree):
        return NNXItem(name, inner)
    if isinstance(inner, linen.Module) or inner is not given:
        raise CheckpointError(
            f"Checkpointer: {name} is a {type(inner).__name__} without a state of its own; pass its "
            "variables, which are a tree."
        )
    for give, take in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
        if callable(getattr(given, give, None)) and callable(getattr(given, take, None)):
            return StatefulItem(name, given, give, take)
    stuck = isinstance(given, Iterator)
    leaves = [] if stuck else jax.tree.leaves(given, is_leaf=lambda node: isinstance(node, nnx.Pytree))
    if any(isinstance(leaf, nnx.Pytree) for leaf in leaves):
        raise CheckpointError(
            f"Checkpointer: {name} is a tree with an NNX object in it; pass that as an item of its own, it "
            "is updated in place."
        )
    if stuck or (len(leaves) == 1 and leaves[0] is given and not _is_value(given)):
        raise CheckpointError(
            f"Checkpointer: {name} is a {type(given).__module__}.{type(given).__qualname__}, which has "
            "neither state_dict and load_state_dict nor get_state and set_state. Its position cannot be "
            "saved, and a resumed run would see other data. Use a loader that has them (jaxpar.data), or "
            "save the number of batches taken and begin there."
        )
    return TreeItem(name, given)


class NNXItem:
    """An NNX module, optimizer or `Rngs`, updated in place. Its leaves' names are its attributes'."""

    kind = "nnx"

    def __init__(self, name: str, node: nnx.Pytree):
        self.name, self.node = name, node
        self._state = [
            (path, leaf)
            for path, leaf in nnx.to_flat_state(nnx.state(node))
            if not isinstance(leaf, (nnx.Intermediate, nnx.Perturbation))
        ]

    def leaves(self) -> dict[str, Leaf]:
        found: dict[str, Leaf] = {}
        for path, leaf in self._state:
            for inside, value in jax.tree_util.tree_leaves_with_path(_raw(leaf)):
                name = ".".join(map(str, path)) + jax.tree_util.keystr(inside)
                if name in found:
                    raise CheckpointError(f"Checkpointer: {self.name} has two leaves called {name}.")
                found[name] = Leaf(value, isinstance(leaf, nnx.RngState) or _is_key(value))
        return found

    def put(self, values: Mapping[str, Any]) -> None:
        state, left = [], iter(values.values())
        for path, leaf in self._state:
            treedef: Any = jax.tree.structure(_raw(leaf))
            value = jax.tree.unflatten(treedef, [next(left) for _ in range(treedef.num_leaves)])
            state.append((path, leaf.copy(value) if isinstance(leaf, nnx.Variable) else value))
        nnx.update(self.node, nnx.from_flat_state(state))


class TreeItem:
    """A pytree; a tree of the same structure is returned."""

    kind = "tree"

    def __init__(self, name: str, tree: PyTree):
        self.name = name
        self._paths, self._structure = jax.tree_util.tree_flatten_with_path(tree)

    def leaves(self) -> dict[str, Leaf]:
        return {
            jax.tree_util.keystr(path) or "value": Leaf(value, _is_key(value)) for path, value in self._paths
        }

    def put(self, values: Mapping[str, Any]) -> PyTree:
        return jax.tree.unflatten(self._structure, list(values.values()))


class StatefulItem:
    """An object that gives and takes its own state: a loader, a sampler, a generator."""

    kind = "state"

    def __init__(self, name: str, holder: Any, give: str, take: str):
        self.name, self._give, self._take = name, getattr(holder, give), getattr(holder, take)

    def leaves(self) -> dict[str, Leaf]:
        return {"state": Leaf(self._give(), whole=True)}

    def put(self, values: Mapping[str, Any]) -> None:
        self._take(values["state"])


def _raw(leaf: Any) -> Any:
    return leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_value(value: Any) -> bool:
    return is_array(value) or isinstance(
        value, (bool, int, float, str, bytes, np.generic, jax.ShapeDtypeStruct)
    )
