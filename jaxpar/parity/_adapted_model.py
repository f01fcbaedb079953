"""AdaptedModel: a model of a library that is not Flax, as an NNX module; and layers whose calls are routed.

NNX, Equinox and Keras have no interceptors. So each layer of a model that is used once temporarily becomes an
instance of a subclass that overrides its call: another call on the class itself would affect other threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flax import nnx

Handler = Callable[[str, Any, Callable[..., Any], tuple, dict], Any]

handler_of_calls: ContextVar[Handler | None] = ContextVar("handler_of_calls", default=None)


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Route the calls of adapted models' layers to `handler`."""
    token = handler_of_calls.set(handler)
    try:
        yield
    finally:
        handler_of_calls.reset(token)


@contextmanager
def in_subclasses(layers: Iterable[Any], subclass: Callable[[type], type]) -> Iterator[None]:
    """Make each layer an instance of its class's `subclass`."""
    classes = [(layer, type(layer)) for layer in layers]
    try:
        for layer, kind in classes:
            # object.__setattr__: libraries freeze layers, or would register the class as an attribute.
            object.__setattr__(layer, "__class__", subclass(kind))
        yield
    finally:
        for layer, kind in classes:
            object.__setattr__(layer, "__class__", kind)


Routed = ContextVar[tuple[Handler, Mapping[int, str]] | None]
"""A handler, and paths by the layer's id: layers are compared by identity, and some have no hash."""


def routed_call(kind: Any, current: Routed) -> Callable[..., Any]:
    """Return the `__call__` of a subclass of `kind`, which calls the handler of `current`."""

    @functools.wraps(kind.__call__)  # the compared model may inspect the signature
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(kind.__call__, self)
        handler, paths = current.get() or (None, {})
        # Copies that transformations make have the subclass too, but no registered path.
        if handler is None or id(self) not in paths:
            return call(*args, **kwargs)
        return handler(paths[id(self)], self, call, args, kwargs)

    return __call__


class Node(nnx.Module):
    """The leaves and nodes below a key, as attributes."""

    _silent: str | None = None  # the key that torch-like names leave out


class AdaptedModel(nnx.Module):
    """The base of NNX modules that wrap other models; `_title` and `_library` are names for reports.

    All names are private: the other attributes are the model's keys.
    """

    _title: str
    _library: str
    _silent: str | None = None  # as in Node

    def _original(self) -> Any:
        """Return the adapted model, with this module's arrays."""
        raise NotImplementedError

    def _node(self, keys: tuple[str, ...]) -> nnx.Module:
        """Return the node below some keys, and make it where it is missing."""
        return functools.reduce(_child, keys, self)


def _child(node: nnx.Module, key: str) -> nnx.Module:
    if not hasattr(node, key):
        setattr(node, key, Node())
    return getattr(node, key)
