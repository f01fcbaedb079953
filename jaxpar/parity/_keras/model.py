"""KerasModel: a Keras 3 model as an NNX module, whose variables are the model's own by path.

Its layers get other classes while it is called. They are the user's own, and other threads see no change.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._typing import PyTree
from ..._upstream.keras_layers import members
from .._adapted_model import AdaptedModel, Handler, Node, handler_of_calls, in_subclasses

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
        try:
            with in_subclasses(unwatched, _watched):
                yield
        finally:
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
    return any(
        base.__name__ in WITH_ACTIVATION for base in kind.__mro__ if base.__module__.startswith("keras.")
    )


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


class KerasLayers:
    """A Keras model's layers and variables by path, parents first; shared ones are listed by every path."""

    def __init__(self, model: Any):
        self.model = model
        self.layers: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        for path, member in _walk(model, "", ()):
            (self.variables if hasattr(member, "assign") else self.layers)[path] = member
        self.trainable = {id(variable) for variable in model.trainable_variables}


class KerasModel(AdaptedModel):
    """Calls a Keras model with this module's arrays in place of the model's variables.

    Trainable variables are parameters, states of random streams are keys, and others, such as moving
    statistics, are buffers. `deterministic` is False in training.
    """

    def __init__(self, model: Any):
        _check(model)
        self._keras, self._title, self._library = KerasLayers(model), type(model).__name__, "Keras"
        self._dtype: str | None = None
        self.deterministic = True
        # By identity: a layer or variable with two paths is one node.
        nodes: dict[int, Any] = {id(model): self}
        for path, member in [*self._keras.layers.items(), *self._keras.variables.items()]:
            if not path:
                continue
            *above, key = self._keys(path)
            is_variable = path in self._keras.variables
            if id(member) not in nodes:
                nodes[id(member)] = self._variable(path, member) if is_variable else Node()
            setattr(self._node(tuple(above)), key, nodes[id(member)])

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        import keras

        kwargs.setdefault("training", not self.deterministic)
        if len(args) > 1 and len(getattr(self._keras.model, "inputs", None) or ()) == len(args):
            args = (list(args),)  # a functional model takes one argument
        pairs = list(self._pairs())
        with intercepted(self._keras.layers, self._dtype), keras.StatelessScope() as scope:
            for own_variable, variable in pairs:
                scope.add_update((own_variable, variable[...]))  # in this module's types
            outputs = self._keras.model(*args, **kwargs)
            for own_variable, variable in pairs:
                if not isinstance(variable, nnx.Param):
                    variable[...] = scope.get_current_value(own_variable).astype(variable.dtype)
        return outputs

    def _original(self) -> Any:
        for own_variable, variable in self._pairs():
            own_variable.assign(variable[...])
        return self._keras.model

    def _compute_in(self, dtype: np.dtype) -> Iterator[str]:
        """Compute in a type; yields a note on each layer that has a type of its own."""
        import keras

        if dtype == np.float64:
            return  # for which the program is rewritten: Keras's functions cast float64 to its default type
        self._dtype = str(dtype)
        for path, layer in self._keras.layers.items():
            if layer.compute_dtype not in (keras.config.floatx(), self._dtype):
                yield f"{path or self._title}: dtype={layer.compute_dtype} was set to {dtype}"

    def _variable(self, path: str, own_variable: Any) -> nnx.Variable:
        value = jnp.asarray(own_variable.value)
        if path.endswith(".state") and path.removesuffix(".state") not in self._keras.layers:
            return nnx.RngKey(value, tag="keras")
        return nnx.Param(value) if id(own_variable) in self._keras.trainable else nnx.BatchStat(value)

    def _pairs(self) -> Iterator[tuple[Any, nnx.Variable]]:
        for path, own_variable in self._keras.variables.items():
            *above, key = self._keys(path)
            yield own_variable, getattr(self._node(tuple(above)), key)

    def _keys(self, path: str) -> tuple[str, ...]:
        return tuple(path.split("."))


def _check(model: Any) -> None:
    import keras

    kind = type(model).__name__
    if keras.backend.backend() != "jax":
        raise TypeError(
            f"{kind} is a Keras model that computes in {keras.backend.backend()}; parity compares Keras on "
            "JAX. Set the environment variable KERAS_BACKEND=jax before Keras is imported."
        )
    # `build` of a subclassed model marks it as built and leaves its layers without variables.
    if not model.built or not (model.variables or all(layer.built for _, layer in members(model))):
        raise TypeError(
            f"{kind} is a Keras model without variables yet. Call it once with an input, or give it an Input."
        )


def _walk(layer: Any, path: str, above: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    yield path, layer
    if hasattr(layer, "assign") or any(layer is parent for parent in above):
        return
    for name, member in members(layer):
        if not any(member is parent for parent in above):
            yield from _walk(member, f"{path}.{name}".lstrip("."), (*above, layer))
