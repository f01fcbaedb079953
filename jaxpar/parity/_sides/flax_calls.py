"""Calls of layers, seen from outside: a handler stands between a layer of the compared copy and its caller.

Linen has interceptors, which belong to a thread. NNX has none. There each layer of the copy becomes, while it
is watched, an instance of a subclass of its own class with another `__call__`. To replace `__call__` of the
class itself would be shorter, and would change the models of every other thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import linen, nnx

from ..._typing import PyTree
from .._weights.tree import FlaxModule


class Handler(Protocol):
    """Called instead of a layer, with its path in the model and the call itself.

    Where it has `bernoulli(path, p, shape)`, that is called where a stream of NNX draws zeros and ones, and
    `normal(path, shape, dtype)` where it draws noise.
    """

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree: ...


def watch(root: FlaxModule, handler: Handler) -> AbstractContextManager[None]:
    """Inside it `handler(path, layer, call, args, kwargs)` answers every call of a layer below `root`.

    Args:
      root: of NNX, a module that nobody else uses meanwhile.
    """
    return _watch_nnx(root, handler) if isinstance(root, nnx.Module) else _watch_linen(handler)


def _watch_linen(handler: Handler) -> AbstractContextManager[None]:
    def interceptor(
        call: Callable[..., PyTree], args: tuple, kwargs: dict, context: linen.module.InterceptorContext
    ) -> PyTree:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        return handler(".".join(context.module.path), context.module, call, args, kwargs)

    return linen.intercept_methods(interceptor)


_current: ContextVar[tuple[Handler, Mapping[int, str]] | None] = ContextVar("watch", default=None)
"""The handler, and paths by the layer's id: layers are compared by identity, and some have no hash."""


@contextmanager
def _watch_nnx(root: nnx.Module, handler: Handler) -> Iterator[None]:
    layers = [(path, node) for path, node in nnx.iter_graph(root, graph=True) if _can_be_watched(node)]
    paths = {id(layer): ".".join(map(str, path)) for path, layer in layers}
    classes: list[tuple[nnx.Module, Any]] = [(layer, type(layer)) for _, layer in layers]
    token = _current.set((handler, paths))
    try:
        for layer, layer_class in classes:
            # Past NNX's own __setattr__, to which every attribute is one of the model's.
            watched = _watched_stream if isinstance(layer, nnx.RngStream) else _watched
            object.__setattr__(layer, "__class__", watched(layer_class))
        yield
    finally:
        for layer, layer_class in classes:
            object.__setattr__(layer, "__class__", layer_class)
        _current.reset(token)


def _can_be_watched(node: Any) -> bool:
    return isinstance(node, nnx.RngStream) or (isinstance(node, nnx.Module) and "__call__" in dir(type(node)))


class _Silent(nnx.Pytree):
    """Keeps a subclass from the hooks of the user's classes, such as registries of models.

    It has NNX's own layout of instances, without which Python refuses to change the class of one.
    """

    def __init_subclass__(cls) -> None:
        # NNX must know the class: a model may split, scan or jit its layers while it is watched.
        nnx.Pytree.__init_subclass__.__func__(cls, pytree=cls._pytree__is_pytree)


class _SilentMixin:
    """The same with the layout of a plain class, which a module has whose first base class is one."""

    def __init_subclass__(cls) -> None:
        _Silent.__init_subclass__.__func__(cls)  # type: ignore[attr-defined]


@functools.cache  # for ever, as NNX and JAX keep every class of modules that they have seen
def _watched(layer_class: Any) -> type[nnx.Module]:
    @functools.wraps(layer_class.__call__)  # whose signature says how a layer may be called
    def __call__(self: nnx.Module, *args: Any, **kwargs: Any) -> PyTree:
        call = super(watched, self).__call__
        handler, paths = _current.get() or (None, {})
        # Copies that a transformation of NNX makes on the way have the class, and no path.
        if handler is None or id(self) not in paths:
            return call(*args, **kwargs)
        return handler(paths[id(self)], self, call, args, kwargs)

    watched = _subclass(layer_class, {"__call__": __call__})
    return watched


@functools.cache
def _watched_stream(stream_class: Any) -> type[nnx.RngStream]:
    def bernoulli(self: nnx.RngStream, p: Any = 0.5, shape: Any = None, **kwargs: Any) -> jax.Array:
        handler, paths = _current.get() or (None, {})
        draw = getattr(handler, "bernoulli", None)
        if draw is None or id(self) not in paths:
            return super(watched, self).bernoulli(p, shape, **kwargs)
        return draw(paths[id(self)], p, jnp.shape(p) if shape is None else shape)

    def normal(self: nnx.RngStream, shape: Any = (), dtype: Any = float, **kwargs: Any) -> jax.Array:
        handler, paths = _current.get() or (None, {})
        draw = getattr(handler, "normal", None)
        if draw is None or id(self) not in paths:
            return super(watched, self).normal(shape, dtype, **kwargs)
        return draw(paths[id(self)], shape, dtype)

    watched = _subclass(stream_class, {"bernoulli": bernoulli, "normal": normal})
    return watched


def _subclass(layer_class: Any, members: dict[str, Any]) -> Any:
    """A subclass that instances can change to: Python refuses a class of another layout."""
    names = {name: getattr(layer_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    subclasses = (
        type(layer_class)(layer_class.__name__, (silent, layer_class), {**members, **names})
        for silent in (_Silent, _SilentMixin)
    )
    return next(subclass for subclass in subclasses if _same_layout(layer_class, subclass))


def _same_layout(layer_class: type, other: type) -> bool:
    try:
        object.__setattr__(object.__new__(layer_class), "__class__", other)
    except TypeError:
        return False
    return True
