"""The kinds of objects that can be saved: NNX objects, pytrees, and objects with a state of their own.

An item has named leaves: arrays become files, the rest is stored in the manifest. An object's own state is
one opaque leaf.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import jax
import numpy as np
from flax import linen, nnx

from .._parallel.data_parallel import DataParallel
from .._training.distributed_data_parallel import DistributedDataParallel
from .._training.division import division_of, undivided, whole_shape, whole_value
from .._training.train_step import TrainStep
from .._tree import is_array
from .._typing import PyTree
from ..errors import CheckpointError
from .json_values import is_key


class ItemLeaf(NamedTuple):
    """A leaf's value, whether it belongs to a random stream, and whether it is an object's own state."""

    value: PyTree
    stream: bool = False
    opaque: bool = False


FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    np.ufunc,
    jax.custom_jvp,
    jax.custom_vjp,
    type(jax.jit(lambda: None)),
)
"""Leaves that are code. An object that can be called may have a state and is not listed."""


class NNXEntry(NamedTuple):
    """A leaf of an NNX object: its variable's path, its own path in the variable's value, both values."""

    path: tuple
    subpath: tuple
    variable: PyTree
    value: PyTree


class NNXItem:
    """An NNX module, optimizer or `Rngs`; `replicated` if all ranks hold equal values in every leaf."""

    def __init__(self, name: str, node: nnx.Pytree, replicated: bool = False):
        self.name, self.node, self.replicated = name, node, replicated
        self._state = [
            (path, leaf)
            for path, leaf in nnx.to_flat_state(nnx.state(node, graph=True))
            # Intermediates belong to one forward pass, and a newly built network does not have any.
            if not isinstance(leaf, (nnx.Intermediate, nnx.Perturbation))
        ]

    def entries(self, complete: bool = False) -> Iterator[NNXEntry]:
        """Yield the leaves. Arrays that replicas divide are shapes, or, `complete`, all ranks' together."""
        for path, leaf in self._state:
            value = whole_value(leaf) if complete else whole_shape(leaf)
            for subpath, part in jax.tree_util.tree_leaves_with_path(value):
                yield NNXEntry(path, subpath, leaf, part)

    def leaves(self, complete: bool = False) -> dict[str, ItemLeaf]:
        leaves: dict[str, ItemLeaf] = {}
        for path, subpath, leaf, value in self.entries(complete):
            name = ".".join(map(str, path)) + jax.tree_util.keystr(subpath)
            if name in leaves:
                raise CheckpointError(f"Checkpointer: {self.name} has two leaves called {name}.")
            leaves[name] = ItemLeaf(value, isinstance(leaf, nnx.RngState) or is_key(value))
        return leaves

    def put(self, values: Mapping[str, PyTree]) -> None:
        # `leaves` and `put` flatten in the same order, so the values need no names here.
        nnx.update(self.node, self.state(values.values(), {}, divide=True))

    def state(
        self, values: Iterable[PyTree], names: Mapping[tuple, tuple], divide: bool = False
    ) -> nnx.State:
        """Return the object's state with new values, and with new paths where `names` has them.

        `divide`: arrays that replicas divide are divided again, as they are in the object.
        """
        state, remaining = [], iter(values)
        for path, leaf in self._state:
            leaves, treedef = jax.tree.flatten(raw(leaf))
            value = jax.tree.unflatten(treedef, [next(remaining) for _ in leaves])
            if isinstance(leaf, nnx.Variable):
                value = _replaced(leaf, value, divide)
            state.append((names.get(path, path), value))
        return nnx.from_flat_state(state)


def _replaced(variable: nnx.Variable, value: PyTree, divide: bool) -> nnx.Variable:
    division = division_of(variable)
    if division is None:
        return variable.copy(value)
    if not divide:
        return undivided(variable, value)
    is_shape = isinstance(value, jax.ShapeDtypeStruct)  # a leaf that is not loaded
    return variable.copy(raw(variable) if is_shape else division.divided(value))


class TreeItem:
    """A tree of values. Functions among them, such as an Equinox module's activation, stay the target's."""

    replicated = False

    def __init__(self, name: str, tree: PyTree):
        self.name = name
        self._paths, self._structure = jax.tree_util.tree_flatten_with_path(tree)

    def leaves(self, complete: bool = False) -> dict[str, ItemLeaf]:
        del complete
        return {
            jax.tree_util.keystr(path) or "value": ItemLeaf(value, is_key(value))
            for path, value in self._paths
            if not isinstance(value, FUNCTIONS)
        }

    def put(self, values: Mapping[str, PyTree]) -> PyTree:
        remaining = iter(values.values())
        leaves = [old if isinstance(old, FUNCTIONS) else next(remaining) for _, old in self._paths]
        return jax.tree.unflatten(self._structure, leaves)


class StatefulItem:
    def __init__(
        self, name: str, give: Callable[[], object], take: Callable[[PyTree], object], replicated: bool
    ):
        self.name, self.give, self._take, self.replicated = name, give, take, replicated

    def leaves(self) -> dict[str, ItemLeaf]:
        """Return the state as one leaf, without its value: only `save` reads the state."""
        return {"state": ItemLeaf(None, opaque=True)}

    def put(self, values: Mapping[str, PyTree]) -> None:
        self._take(values["state"])


Item: TypeAlias = "NNXItem | TreeItem | StatefulItem"


def item_of(name: str, target: PyTree) -> Item:
    inner, replicated = target, False
    while isinstance(inner, (DataParallel, DistributedDataParallel)):
        # Its steps broadcast one rank's buffers to all ranks, including random streams.
        replicated |= isinstance(inner, DistributedDataParallel) and inner.engine_state.usual.shares_buffers
        inner = inner.module  # so that a checkpoint does not depend on the wrapper
    if isinstance(inner, nnx.Pytree):
        return NNXItem(name, inner, replicated)
    if isinstance(inner, linen.Module) or inner is not target:
        raise CheckpointError(
            f"Checkpointer: {name} is a {type(inner).__name__} without a state of its own; pass its "
            "variables, which are a tree."
        )
    for get, put in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
        give, take = getattr(target, get, None), getattr(target, put, None)
        if callable(give) and callable(take):
            return StatefulItem(name, give, take, isinstance(target, TrainStep))
    # Iterators are refused even if they are pytrees: their position may not be among the leaves.
    stuck = isinstance(target, Iterator)
    leaves = [] if stuck else jax.tree.leaves(target, is_leaf=lambda node: isinstance(node, nnx.Pytree))
    if any(isinstance(leaf, nnx.Pytree) for leaf in leaves):
        raise CheckpointError(
            f"Checkpointer: {name} is a tree with an NNX object in it; pass that as an item of its own, it "
            "is updated in place."
        )
    if stuck or (len(leaves) == 1 and leaves[0] is target and not is_value(target)):
        raise CheckpointError(
            f"Checkpointer: {name} is a {type(target).__module__}.{type(target).__qualname__}, which has "
            "neither state_dict and load_state_dict nor get_state and set_state. Its position cannot be "
            "saved, and a resumed run would see other data. Use a loader that has them (jaxpar.data), or "
            "save the number of batches taken and begin there."
        )
    return TreeItem(name, target)


def raw(leaf: PyTree) -> PyTree:
    return leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf


def is_value(value: object) -> bool:
    return is_array(value) or isinstance(
        value, (bool, int, float, str, bytes, np.generic, jax.ShapeDtypeStruct)
    )
