"""The few functions of JAX that the recorder's files call, for an environment without JAX."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


class Nothing:
    """A class without instances, for jax.Array and the like."""


def _flatten(node: Any, is_leaf: Callable[[Any], bool] | None, leaves: list[Any]) -> Any:
    """Append the leaves; return a function that rebuilds the node from an iterator of new leaves."""
    if node is None:
        return lambda new: None
    if isinstance(node, (tuple, list, dict)) and not (is_leaf and is_leaf(node)):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        children = [_flatten(node[key], is_leaf, leaves) for key in keys]

        def rebuild(new: Any) -> Any:
            values = [child(new) for child in children]
            if isinstance(node, dict):
                return dict(zip(keys, values, strict=True))
            return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)

        return rebuild
    leaves.append(node)
    return lambda new: next(new)


def flatten(tree_: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    leaves: list[Any] = []
    return leaves, _flatten(tree_, is_leaf, leaves)


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    return structure(iter(leaves))


def leaves(tree_: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return flatten(tree_, is_leaf)[0]


def map_(function: Callable[[Any], Any], tree_: Any) -> Any:
    arrays, structure = flatten(tree_)
    return unflatten(structure, [function(x) for x in arrays])


Array = Device = Nothing
tree = SimpleNamespace(flatten=flatten, unflatten=unflatten, leaves=leaves, map=map_)
tree_util = SimpleNamespace(
    PyTreeDef=Nothing, register_pytree_node_class=lambda kind: kind, all_leaves=lambda nodes: True
)
dtypes = SimpleNamespace(prng_key=None, issubdtype=lambda dtype, kind: False)
numpy = SimpleNamespace(
    floating=np.floating, issubdtype=np.issubdtype, finfo=np.finfo, dtype=np.dtype, bfloat16=np.float16
)
bfloat16 = float8_e4m3fn = float8_e5m2 = np.float16  # of ml_dtypes: never seen, as the recorder widens
finfo, iinfo = np.finfo, np.iinfo
