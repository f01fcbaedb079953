"""PytreeModel: a function with its parameters, or a callable pytree, as an NNX module.

Leaves have the paths of their keys: `layers.0.weight` for an attribute `layers`, a list and an attribute
`weight`. To intercept the calls of layers: Equinox has no interceptors, so the modules of a tree, which is
made for one call, get other classes; Haiku has them, and names its modules as the keys of its parameters.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from ..._typing import PyTree
from ..._upstream.keras_layers import is_of_keras
from .._adapted_model import AdaptedModel, Handler, Routed, handler_of_calls, in_subclasses, routed_call
from .._keras.model import KerasModel

Keys = tuple[str, ...]

_run: Routed = ContextVar("run", default=None)


def keys_of(path: tuple[Any, ...]) -> Keys:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def equinox_modules(tree: PyTree) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and modules of a tree that can be called, outer ones first."""
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        yield from _modules(tree, (), equinox.Module)


def _modules(tree: PyTree, above: Keys, kind: type) -> Iterator[tuple[Keys, Any]]:
    if isinstance(tree, kind) and _is_layer(tree):
        yield above, tree
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree and isinstance(x, kind)
    )
    for path, leaf in leaves:
        if leaf is not tree and isinstance(leaf, kind):
            yield from _modules(leaf, (*above, *keys_of(path)), kind)


def _is_layer(module: Any) -> bool:
    # A method that is stored as an attribute is a module of Equinox's own.
    return callable(module) and not type(module).__module__.startswith("equinox._module")


@contextmanager
def intercepted(tree: PyTree, leaves: Sequence[Keys]) -> Iterator[None]:
    """Intercept the calls of layers, by the keys of `tree` or of its leaves."""
    handler = handler_of_calls.get()
    if handler is None:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_equinox(tree, handler))
        haiku = sys.modules.get("haiku")
        if hasattr(haiku, "intercept_methods"):
            stack.enter_context(_haiku(haiku, leaves, handler))
        yield


@contextmanager
def _equinox(tree: PyTree, handler: Handler) -> Iterator[None]:
    modules = list(equinox_modules(tree))
    token = _run.set((handler, {id(module): ".".join(keys) for keys, module in modules}))
    try:
        with in_subclasses((module for _, module in modules), _watched):
            yield
    finally:
        _run.reset(token)


@functools.cache  # unbounded: JAX keeps every class of a pytree alive anyway
def _watched(kind: Any) -> Any:
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (kind,), {"__call__": routed_call(kind, _run), **names})


def _haiku(haiku: Any, leaves: Sequence[Keys], handler: Handler) -> AbstractContextManager[None]:
    paths: dict[str, str] = {}
    for keys in leaves:
        for n, key in enumerate(keys[:-1], 1):
            paths.setdefault(key, ".".join(keys[:n]))  # a layer's parameters come before its state

    def interceptor(call: Callable[..., Any], args: tuple, kwargs: dict, context: Any) -> Any:
        is_call = context.method_name == "__call__"
        path = paths.get(context.module.module_name) if is_call else None
        return call(*args, **kwargs) if path is None else handler(path, context.module, call, args, kwargs)

    return haiku.intercept_methods(interceptor)


class PytreeModel(AdaptedModel):
    """Calls `function(tree, *args, **kwargs)`; the tree's floating arrays are parameters, its others buffers.

    All names are private: the attributes are the tree's keys.
    """

    def __init__(self, function: Callable[..., Any], tree: PyTree, title: str):
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        self._function, self._structure = function, structure
        self._title, self._library = title, "JAX"
        self._keys = nnx.static(tuple(keys_of(path) or ("params",) for path, _ in leaves))
        self._others = nnx.static(tuple(None if is_array(x) else x for _, x in leaves))
        for path, leaf in leaves:
            if is_array(leaf):
                *above, key = keys_of(path) or ("params",)
                kind = nnx.Param if jnp.issubdtype(leaf.dtype, jnp.inexact) else nnx.Variable
                setattr(self._node(tuple(above)), key, kind(jnp.asarray(leaf)))
                for keys in _sequentials(tree, path):
                    self._node(keys)._silent = "layers"
        for path, _ in equinox_modules(tree):  # some have no leaves, such as pooling
            self._node(path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tree = self._original()
        with intercepted(tree, self._keys):
            return self._function(tree, *args, **kwargs)

    def keep(self, paths: Collection[str]) -> None:
        """Make some leaves buffers: nothing in a tree marks what is trained."""
        for *above, key in (keys for keys in self._keys if ".".join(keys) in paths):
            node = self._node(tuple(above))
            setattr(node, key, nnx.Variable(getattr(node, key)[...]))

    def _original(self) -> PyTree:
        leaves = []
        for keys, other in zip(self._keys, self._others, strict=True):
            node: Any = self
            for key in keys:
                node = getattr(node, key, None)
            leaves.append(node[...] if isinstance(node, nnx.Variable) else other)
        return jax.tree.unflatten(self._structure, leaves)


def as_flax(model: Any) -> Any:
    """Return a Flax module as it is, and anything else that can be called with arrays as an AdaptedModel.

    A Keras model becomes a KerasModel. `(function, tree)` is called with the tree first; a function alone has
    no parameters; a callable pytree, such as an Equinox module, has its arrays as parameters.
    """
    if is_of_keras(model):
        return KerasModel(model)
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
    named = model._title if isinstance(model, AdaptedModel) else getattr(model, "shown_name", None)
    return named or type(model).__name__


def framework_of(model: Any) -> str:
    if isinstance(model, AdaptedModel):
        return model._library
    return "torch" if is_of_torch(model) else "Flax"


def is_of_torch(model: Any) -> bool:
    # By name: `check` runs where torch is not installed.
    return any(base.__module__.partition(".")[0] == "torch" for base in type(model).__mro__)


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _sequentials(tree: PyTree, path: tuple[Any, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the keys above a leaf at which Equinox has a Sequential, whose attribute torch's has not."""
    node = tree
    for i, key in enumerate(path):
        # By name: Equinox may not be installed.
        if any(
            base.__module__.startswith("equinox.")
            for base in type(node).__mro__
            if base.__name__ == "Sequential"
        ):
            yield keys_of(path)[:i]
        if isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey | jax.tree_util.DictKey):
            node = node[key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key]
        else:
            return


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
