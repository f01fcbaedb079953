"""Watching a Flax model while it is called or traced: a handler stands between a layer and its caller.

Linen has interceptors for this. NNX has none, so `__call__` of the classes in the model is replaced
for the length of the `with`; calls of other modules of these classes are left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from flax import linen, nnx

_lock = threading.RLock()


class Handler(Protocol):
    """Called instead of a layer, with its path in the model and the call itself."""

    def __call__(self, path: str, layer: Any, call: Callable[..., Any], args: tuple, kwargs: dict) -> Any: ...


def watch(root: nnx.Module | linen.Module, handler: Handler) -> AbstractContextManager[None]:
    """Inside it `handler(path, layer, call, args, kwargs)` answers every call of a layer below `root`."""
    return _watch_nnx(root, handler) if isinstance(root, nnx.Module) else _watch_linen(handler)


@contextmanager
def _watch_linen(handler: Handler) -> Iterator[None]:
    def interceptor(call: Callable[..., Any], args: tuple, kwargs: dict, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        return handler(".".join(context.module.path), context.module, call, args, kwargs)

    with linen.intercept_methods(interceptor):
        yield


@contextmanager
def _watch_nnx(root: nnx.Module, handler: Handler) -> Iterator[None]:
    layers = list(nnx.iter_modules(root))
    paths = {id(layer): ".".join(map(str, path)) for path, layer in layers}
    running: list[int] = []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: nnx.Module, *args: Any, **kwargs: Any) -> Any:
            # A second call inside the first is super().__call__.
            if id(self) not in paths or (running and running[-1] == id(self)):
                return original(self, *args, **kwargs)
            running.append(id(self))
            try:
                return handler(paths[id(self)], self, original.__get__(self), args, kwargs)
            finally:
                running.pop()

        return __call__

    with _lock, ExitStack() as stack:
        classes = {type(layer) for _, layer in layers if "__call__" in dir(type(layer))}
        originals = {cls: cls.__call__ for cls in classes}  # before any is replaced: they inherit
        for cls, original in originals.items():
            stack.enter_context(_replaced(cls, watched(original)))
        yield


@contextmanager
def _replaced(cls: type, call: Callable[..., Any]) -> Iterator[None]:
    own = cls.__dict__.get("__call__")
    cls.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del cls.__call__
        else:
            cls.__call__ = own  # type: ignore[method-assign]
