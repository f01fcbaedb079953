"""Bases of jaxpar.nn's layers, and how their Variables are drawn and read."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import warn
from .._typing import PyTree, Shape

M = TypeVar("M", bound=nnx.Module)


def deepcopy(module: M) -> M:
    """A copy with equal parameters, which draws random numbers of its own.

    torch counterpart: `copy.deepcopy`, after which both drop different units; Flax's copies drop the same.
    """
    copied = copy.deepcopy(module)
    streams = {path: x for path, x in nnx.iter_graph(module, graph=True) if isinstance(x, nnx.RngStream)}
    for path, x in nnx.iter_graph(copied, graph=True):
        if isinstance(x, nnx.RngStream):
            x.key.set_value(streams[path]())
            x.count.set_value(jnp.zeros_like(x.count[...]))
    return copied


def freeze(module: M) -> M:
    """Make the parameters of a module constants, which no optimizer trains; return the module.

    Each `nnx.Param`, in lists and dicts too, becomes a plain `nnx.Variable` with its array and metadata:
    `nnx.value_and_grad` and `nnx.Optimizer(..., wrt=nnx.Param)` leave it out, and checkpoints keep it. A
    shared parameter becomes one variable.

    >>> from flax import nnx
    >>> from jaxpar.nn import channels_first as nn
    >>> net = nn.freeze(nn.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> len(nnx.to_flat_state(nnx.state(net, nnx.Param)))
    0

    torch counterpart: `module.requires_grad_(False)`.
    """
    constants: dict[int, nnx.Variable] = {}
    for _, node in [*nnx.iter_graph(module, graph=True)]:
        for name, variable in [*vars(node).items()] if isinstance(node, nnx.Pytree) else []:
            if isinstance(variable, nnx.Param):
                constant = nnx.Variable.from_metadata(variable[...], variable.get_metadata())
                setattr(node, name, constants.setdefault(id(variable), constant))
    return module


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


PROGRAMS = (1 << 16, 1 << 20, 1 << 22)
"""Sizes with a compiled draw; larger ones are rounded up to the next power of two."""


def optional(exists: bool, create: Callable[[], nnx.Variable]) -> nnx.Variable | None:
    """Return the variable, or the None that marks an absent one in Flax."""
    return create() if exists else nnx.data(None)


def constant(
    exists: bool, value: float, shape: Shape, dtype: DTypeLike, kind: type[nnx.Variable] = nnx.Param
) -> nnx.Variable | None:
    return optional(exists, lambda: kind(jnp.full(shape, value, dtype)))


def uniform(rngs: nnx.Rngs, shape: Shape, fan_in: int, dtype: DTypeLike) -> nnx.Param:
    """Draw a parameter from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as torch draws weights and biases alike."""
    if len(shape) > 1 and 0 in shape:
        warn("Initializing zero-element tensors is a no-op")
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    return nnx.Param(drawn(rngs.params(), shape, dtype, bound))


def drawn(key: jax.Array, shape: Shape, dtype: DTypeLike, bound: float) -> jax.Array:
    """Return `jax.random.uniform(key, shape, dtype, -bound, bound)`, with one program for many shapes."""
    # XLA takes 0.1 s to compile a draw, seconds in all for a model of many shapes. The numbers are functions
    # of a counter, so a shorter draw is the beginning of a longer one.
    size = int(math.prod(shape))  # of NumPy's numbers, too
    # A traced draw is compiled with its program; other generators do not promise equal beginnings.
    if isinstance(key, jax.core.Tracer) or not _counts(key) or not size:
        return jax.random.uniform(key, shape, dtype, -bound, bound)
    program = next((n for n in PROGRAMS if n >= size), 1 << (size - 1).bit_length())
    longer = jax.random.uniform(key, (program,), dtype, -bound, bound)
    # Cut on the host: a slice on the device would be one more program for each shape.
    return jax.device_put(jax.device_get(longer)[:size].reshape(shape))


def _counts(key: jax.Array) -> bool:
    """Whether the n-th number is the same in all draws of at least n numbers."""
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return False
    partitionable = bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    return partitionable and str(jax.random.key_impl(key)) == "threefry2x32"


def arrays(*variables: nnx.Variable | None) -> tuple[jax.Array | None, ...]:
    return tuple(None if variable is None else variable[...] for variable in variables)


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Cast the arrays of a tree to `dtype`; leave them unchanged if it is None."""
    return tree if dtype is None else jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)
