"""Bases of jaxpar.nn's layers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class _Signature:
    # inspect stops at the `__call__(*args, **kwargs)` of Flax's metaclass and never reads `__init__`.
    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # a layer is called with the arguments of `__call__`
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(parameters)


class Layer(nnx.Module):
    """Flax's Module; `inspect.signature` of a subclass shows its constructor's arguments."""

    __signature__ = _Signature()


@dataclasses.dataclass(eq=False, repr=False)
class TypedLayer(Layer):
    """A layer with drawn parameters: a dataclass of its options."""

    _: dataclasses.KW_ONLY
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    rngs: dataclasses.InitVar[nnx.Rngs]


@dataclasses.dataclass(eq=False, repr=False)
class FunctionLayer(Layer):
    """A layer without parameters: a dataclass of the options with which it calls `_function`."""

    # Private, since tabulate runs every public function of a class as a method.
    _function: ClassVar[Callable[..., Any]]

    def __call__(self, x: jax.Array) -> Any:
        function = type(self)._function
        # A subclass may have fields of its own, which mean nothing to the function.
        names = (field.name for field in dataclasses.fields(self) if field.name in _accepted(function))
        return function(x, **{name: getattr(self, name) for name in names})


@functools.cache
def _accepted(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
