"""Bundles: several NNX objects as one module.

In the middle of a call, or of a step, there is one module, whose variables are data. Networks that are
trained together have variables as well, and so have modules, streams (`nnx.Rngs`) and metrics among the
arguments of a call. Bundled they are one module to everything that splits, sends, runs and puts back, and
what they share they go on sharing. JAX takes them for trees of arrays, so as arguments they would be cut
into rows.

torch has nothing like it: a tensor is data wherever it stands, and a generator is the process's.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from ..._typing import PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Place:
    """Stands for the i-th object among the arguments: a part of their structure, and no leaf."""

    i: int


class Bundle(nnx.Module):
    """One module in the place of several, or of one and the objects that a call is given.

    Args:
      net: a module, a function, or a sequence of modules.
      objects: those among the arguments, which have `Place`s in their stead.
    """

    def __init__(self, net: Any, objects: Sequence[Any] = ()):
        self.several = isinstance(net, (tuple, list))
        # One attribute for each: Flax lets no plain tuple hold modules.
        self.names = tuple(f"net{i}" for i in range(len(net))) if self.several else ("net",)
        self.arguments = tuple(f"argument{i}" for i in range(len(objects)))
        for name, each in zip(self.names, net if self.several else [net], strict=True):
            setattr(self, name, each)
        for name, each in zip(self.arguments, objects, strict=True):
            setattr(self, name, each)

    @property
    def nets(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.names)

    def filled(self, tree: PyTree) -> PyTree:
        """Arguments with the objects where their places are."""

        def fill(x: Any) -> Any:
            return getattr(self, self.arguments[x.i]) if isinstance(x, Place) else x

        return jax.tree.map(fill, tree, is_leaf=lambda x: isinstance(x, Place))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return Given(operator.call)(self, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Given:
    """`function(net, *args, **kwargs)` as a function of a bundle; several networks are a tuple."""

    function: Callable[..., Any]

    def __call__(self, bundle: Bundle, *args: PyTree, **kwargs: PyTree) -> Any:
        args, kwargs = bundle.filled((args, kwargs))
        nets = bundle.nets
        return self.function(nets if bundle.several else nets[0], *args, **kwargs)


def nets_of(thing: Any) -> tuple[Any, ...]:
    """The networks in a bundle, or the one that is none."""
    return thing.nets if isinstance(thing, Bundle) else (thing,)


def set_aside(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any], tuple[Any, ...]]:
    """Arguments with a `Place` for every object that has variables, and these objects, each of them once."""
    leaves, form = jax.tree.flatten((args, kwargs), is_leaf=is_object)
    objects = {id(leaf): leaf for leaf in leaves if is_object(leaf)}
    if not objects:
        return args, kwargs, ()
    places = {key: Place(i) for i, key in enumerate(objects)}
    args, kwargs = jax.tree.unflatten(form, [places.get(id(leaf), leaf) for leaf in leaves])
    return args, kwargs, tuple(objects.values())


def is_object(x: object) -> bool:
    """Not a container: `nnx.List` and `nnx.Dict` are looked into, as lists and dicts are."""
    return isinstance(x, _OBJECTS) and not isinstance(x, (nnx.List, nnx.Dict))


_OBJECTS = (nnx.Module, nnx.Rngs, nnx.RngStream, nnx.Metric, nnx.Optimizer)


def refuse_metrics(objects: Sequence[Any], function: str) -> None:
    """Raises TypeError: replica 0's buffers are kept, and a metric is one of the whole batch."""
    found = next((x for x in objects if isinstance(x, nnx.Metric)), None)
    if found is not None:
        raise TypeError(
            f"{function}: {type(found).__name__} is an argument, and every replica would count its own rows, "
            "of which replica 0's alone are kept. Return what it counts, and update it with the outputs."
        )
