"""Intercept the calls of a model's layers: a handler runs between each layer and its caller."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import linen, nnx

from ..._typing import PyTree
from .._adapted_model import AdaptedModel, Routed, handled, in_subclasses, routed_call
from .._weights.tree import FlaxModule


class Handler(Protocol):
    """Called instead of a layer, with the layer's path in the model and the original call.

    A handler may define `bernoulli(path, p, shape)`, `normal(path, shape, dtype)` and `uniform` likewise,
    which then replace the methods of the same names of NNX's random streams.
    """

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree: ...


def watch(root: FlaxModule, handler: Handler) -> AbstractContextManager[None]:
    """Route every call of a layer below `root`, which no other thread may use meanwhile, to `handler`."""
    if isinstance(root, AdaptedModel):
        return handled(handler)
    return _watch_nnx(root, handler) if isinstance(root, nnx.Module) else _watch_linen(handler)


def _watch_linen(handler: Handler) -> AbstractContextManager[None]:
    def interceptor(
        call: Callable[..., PyTree], args: tuple, kwargs: dict, context: linen.module.InterceptorContext
    ) -> PyTree:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        return handler(".".join(context.module.path), context.module, call, args, kwargs)

    return linen.intercept_methods(interceptor)


_current: Routed = ContextVar("watch", default=None)


@contextmanager
def _watch_nnx(root: nnx.Module, handler: Handler) -> Iterator[None]:
    layers = [(path, node) for path, node in nnx.iter_graph(root, graph=True) if _can_be_watched(node)]
    paths = {id(layer): ".".join(map(str, path)) for path, layer in layers}
    token = _current.set((handler, paths))
    try:
        with in_subclasses((layer for _, layer in layers), _watched):
            yield
    finally:
        _current.reset(token)


def _can_be_watched(node: Any) -> bool:
    return isinstance(node, nnx.RngStream) or (isinstance(node, nnx.Module) and "__call__" in dir(type(node)))


class _Silent(nnx.Pytree):
    """Keeps subclasses from triggering `__init_subclass__` hooks of user classes, such as model registries.

    It has NNX modules' instance layout, as Python demands of an assigned `__class__`.
    """

    def __init_subclass__(cls) -> None:
        # NNX must register the class, because a model may split, scan or jit its layers meanwhile.
        nnx.Pytree.__init_subclass__.__func__(cls, pytree=cls._pytree__is_pytree)


class _SilentMixin:
    """`_Silent` with a plain class's layout, for modules whose first base is a plain class."""

    def __init_subclass__(cls) -> None:
        _Silent.__init_subclass__.__func__(cls)  # type: ignore[attr-defined]


@functools.cache  # unbounded: NNX and JAX keep every module class alive anyway
def _watched(layer_class: Any) -> type:
    if issubclass(layer_class, nnx.RngStream):
        return _watched_stream(layer_class)
    return _subclass(layer_class, {"__call__": routed_call(layer_class, _current)})


def _drawing(stream: nnx.RngStream, name: str) -> Callable[..., jax.Array] | None:
    handler, paths = _current.get() or (None, {})
    draw = getattr(handler, name, None)
    return functools.partial(draw, paths[id(stream)]) if draw and id(stream) in paths else None


def _watched_stream(stream_class: Any) -> type[nnx.RngStream]:
    def bernoulli(self: nnx.RngStream, p: Any = 0.5, shape: Any = None, **kwargs: Any) -> jax.Array:
        draw = _drawing(self, "bernoulli")
        if draw is None:
            return super(watched, self).bernoulli(p, shape, **kwargs)
        return draw(p, jnp.shape(p) if shape is None else _axes(shape))

    def of_shape(name: str) -> Callable[..., jax.Array]:
        def method(self: nnx.RngStream, shape: Any = (), dtype: Any = float, **kwargs: Any) -> jax.Array:
            draw = None if kwargs else _drawing(self, name)
            return (
                getattr(super(watched, self), name)(shape, dtype, **kwargs)
                if draw is None
                else draw(_axes(shape), dtype)
            )

        return method

    methods = {"bernoulli": bernoulli, "normal": of_shape("normal"), "uniform": of_shape("uniform")}
    watched = _subclass(stream_class, methods)
    return watched


def _axes(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple: JAX takes one number for a vector's."""
    return tuple(shape) if hasattr(shape, "__len__") else (int(shape),)


def _subclass(layer_class: Any, members: dict[str, Any]) -> Any:
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
