"""Intercept the calls of a Keras model's layers, and compute in a chosen type.

Keras has no interceptors, so each layer temporarily becomes an instance of a subclass that overrides `call`.
The layers are the user's own, and the subclass changes nothing in other threads.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .._adapted_model import Handler, handler_of_calls

WITH_ACTIVATION = ("Dense", "EinsumDense", "BaseConv", "BaseConvTranspose", "BaseDepthwiseConv")
"""Classes with a function that is applied last. Torch's layers have none, so it runs after the handler."""


@dataclasses.dataclass
class _Interception:
    paths: Mapping[int, str]  # by the layers' ids
    handler: Handler | None
    dtype: str | None
    linear: set[int] = dataclasses.field(default_factory=set)  # layers that leave out their activation


_run: ContextVar[_Interception | None] = ContextVar("run", default=None)
_classes = threading.RLock()  # held while layers have other classes


@contextmanager
def intercepted(layers: Mapping[str, Any], dtype: str | None) -> Iterator[None]:
    """Intercept the calls of layers by path, which compute in `dtype`."""
    paths: dict[int, str] = {}
    for path, layer in layers.items():
        paths.setdefault(id(layer), path)
    with _classes:
        token = _run.set(_Interception(paths, handler_of_calls.get(), dtype))
        unwatched = [layer for layer in layers.values() if not hasattr(layer, "_is_watched")]
        classes: list[tuple[Any, Any]] = [(layer, type(layer)) for layer in unwatched]
        try:
            for layer, kind in classes:
                # object.__setattr__, because Keras's own would track the class as an attribute.
                object.__setattr__(layer, "__class__", _watched(kind))
            yield
        finally:
            for layer, kind in classes:
                object.__setattr__(layer, "__class__", kind)
            _run.reset(token)


def _current(layer: Any) -> _Interception | None:
    run = _run.get()
    return run if run is not None and id(layer) in run.paths else None


@functools.cache
def _watched(kind: Any) -> Any:
    @functools.wraps(kind.call)  # Keras inspects the signature
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original, run = super(watched, self).call, _current(self)
        if run is None or run.handler is None:
            return original(*args, **kwargs)
        path = run.paths[id(self)]
        if not applies_activation(kind):
            return run.handler(path, self, original, args, kwargs)
        outputs = run.handler(path, self, functools.partial(_linear, run, self, original), args, kwargs)
        return outputs if self.activation is None else self.activation(outputs)

    members = {"call": call, "_is_watched": True, "__module__": kind.__module__, "__doc__": kind.__doc__}
    members |= {name: _in_dtype(kind, name) for name in ("compute_dtype", "variable_dtype")}
    if applies_activation(kind):
        members["activation"] = property(_activation)
    watched = type(kind)(kind.__name__, (kind,), members)
    return watched


def applies_activation(kind: type) -> bool:
    return any(base.__name__ in WITH_ACTIVATION for base in kind.__mro__ if _is_keras_own(base))


def _is_keras_own(kind: type) -> bool:
    return kind.__module__.startswith("keras.")


def _linear(run: _Interception, layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    run.linear.add(id(layer))
    try:
        return call(*args, **kwargs)
    finally:
        run.linear.discard(id(layer))


def _activation(layer: Any) -> Any:
    run = _current(layer)
    return None if run is not None and id(layer) in run.linear else vars(layer)["activation"]


def _in_dtype(kind: Any, name: str) -> property:
    original = getattr(kind, name)

    def dtype(layer: Any) -> str:
        run, value = _current(layer), original.fget(layer)
        # A layer of integers, such as a table of hashes, keeps its type.
        return run.dtype if run is not None and run.dtype and "float" in value else value

    return property(dtype)
