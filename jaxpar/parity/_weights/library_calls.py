"""Intercept the calls of the layers of Equinox and Haiku inside of a function.

Equinox has no interceptors, so the modules of a tree, which is made for one call, get other classes. Haiku
has interceptors, and names its modules as the keys of its parameters.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import jax

from ..._typing import PyTree
from .._adapted_model import Handler, Routed, handler_of_calls, in_subclasses, routed_call

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
