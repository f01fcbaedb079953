"""PytreeModel: a function with its parameters, or a callable pytree, as an NNX module.

Leaves have the paths of their keys: `layers.0.weight` for an attribute `layers`, a list and an attribute
`weight`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from ..._typing import PyTree


class _Node(nnx.Module):
    """The leaves and nodes below a key, as attributes."""


class PytreeModel(nnx.Module):
    """Calls `function(tree, *args, **kwargs)`; the tree's floating arrays are parameters, its others buffers.

    `_title` is the name for reports. All names are private: the attributes are the tree's keys.
    """

    def __init__(self, function: Callable[..., Any], tree: PyTree, title: str):
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        self._function, self._structure, self._title = function, structure, title
        self._keys = nnx.static(tuple(_keys(path) for path, _ in leaves))
        self._others = nnx.static(tuple(None if is_array(x) else x for _, x in leaves))
        for path, leaf in leaves:
            if is_array(leaf):
                *above, key = _keys(path)
                kind = nnx.Param if jnp.issubdtype(leaf.dtype, jnp.inexact) else nnx.Variable
                setattr(functools.reduce(_child, above, self), key, kind(jnp.asarray(leaf)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(tree_with_arrays(self), *args, **kwargs)


def tree_with_arrays(model: PytreeModel) -> PyTree:
    """Return the tree that a model was made of, with the model's arrays."""
    leaves = []
    for keys, other in zip(model._keys, model._others, strict=True):
        node: Any = model
        for key in keys:
            node = getattr(node, key, None)
        leaves.append(node[...] if isinstance(node, nnx.Variable) else other)
    return jax.tree.unflatten(model._structure, leaves)


def as_flax(model: Any) -> Any:
    """Return a Flax module as it is, and anything else that can be called with arrays as a PytreeModel.

    `(function, tree)` is called with the tree first; a function alone has no parameters; a callable pytree,
    such as an Equinox module, has its arrays as parameters.
    """
    if isinstance(model, nnx.Module | linen.Module):
        return model
    if isinstance(model, tuple) and len(model) == 2 and callable(model[0]):
        return PytreeModel(*model, _title(model[0]))
    if isinstance(model, type) or not callable(model) or is_of_torch(model):
        return model  # `tree_of` raises
    if jax.tree_util.all_leaves([model]):
        return PytreeModel(lambda _, *args, **kwargs: model(*args, **kwargs), (), _title(model))
    return PytreeModel(lambda tree, *args, **kwargs: tree(*args, **kwargs), model, type(model).__name__)


def name_of(model: Any) -> str:
    named = model._title if isinstance(model, PytreeModel) else getattr(model, "shown_name", None)
    return named or type(model).__name__


def framework_of(model: Any) -> str:
    return "torch" if is_of_torch(model) else "JAX" if isinstance(model, PytreeModel) else "Flax"


def is_of_torch(model: Any) -> bool:
    # By name: `check` runs where torch is not installed.
    return any(base.__module__.partition(".")[0] == "torch" for base in type(model).__mro__)


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _child(node: nnx.Module, key: str) -> nnx.Module:
    if not hasattr(node, key):
        setattr(node, key, _Node())
    return getattr(node, key)


def _keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the keys of a leaf; a tree that is one array has the key "params"."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path) or ("params",)


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
