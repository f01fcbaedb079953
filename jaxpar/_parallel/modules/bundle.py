"""Bundles: several NNX objects, networks or arguments of a call, as one module.

Passed as arguments of a program, JAX would treat objects as trees of arrays and split them into rows.
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
class ArgumentMarker:
    """Marks the position of the i-th object: part of the arguments' structure, without leaves."""

    i: int


class Bundle(nnx.Module):
    """One module that substitutes for several, or for one and the objects among a call's arguments."""

    def __init__(self, net: Any, objects: Sequence[Any] = ()):
        self.several = isinstance(net, (tuple, list))
        # One attribute for each: Flax lets no plain tuple hold modules.
        self.names = tuple(f"net{i}" for i in range(len(net))) if self.several else ("net",)
        self.arguments = tuple(f"argument{i}" for i in range(len(objects)))
        for name, network in zip(self.names, net if self.several else [net], strict=True):
            setattr(self, name, network)
        for name, obj in zip(self.arguments, objects, strict=True):
            setattr(self, name, obj)

    @property
    def nets(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.names)

    def filled(self, tree: PyTree) -> PyTree:
        def fill(x: Any) -> Any:
            return getattr(self, self.arguments[x.i]) if isinstance(x, ArgumentMarker) else x

        return jax.tree.map(fill, tree, is_leaf=lambda x: isinstance(x, ArgumentMarker))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return BundleFunction(operator.call)(self, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class BundleFunction:
    """`function(net, *args, **kwargs)` as a function of a bundle; several networks are a tuple."""

    function: Callable[..., Any]

    def __call__(self, bundle: Bundle, *args: PyTree, **kwargs: PyTree) -> Any:
        args, kwargs = bundle.filled((args, kwargs))
        nets = bundle.nets
        return self.function(nets if bundle.several else nets[0], *args, **kwargs)


def nets_of(module: Any) -> tuple[Any, ...]:
    return module.nets if isinstance(module, Bundle) else (module,)


def is_object(x: object) -> bool:
    """Whether x is an NNX object; `nnx.List` and `nnx.Dict` are containers, like lists and dicts."""
    return isinstance(x, _OBJECTS) and not isinstance(x, (nnx.List, nnx.Dict))


_OBJECTS = (nnx.Module, nnx.Rngs, nnx.RngStream, nnx.Metric, nnx.Optimizer)


def set_aside(
    args: tuple, kwargs: dict[str, Any], is_object: Callable[[object], bool] = is_object
) -> tuple[tuple, dict[str, Any], tuple[Any, ...]]:
    """The arguments with an `ArgumentMarker` for every object with variables, and these objects."""
    leaves, form = jax.tree.flatten((args, kwargs), is_leaf=is_object)
    objects = {id(leaf): leaf for leaf in leaves if is_object(leaf)}
    if not objects:
        return args, kwargs, ()
    markers = {key: ArgumentMarker(i) for i, key in enumerate(objects)}
    args, kwargs = jax.tree.unflatten(form, [markers.get(id(leaf), leaf) for leaf in leaves])
    return args, kwargs, tuple(objects.values())


def refuse_metrics(objects: Sequence[Any], function: str) -> None:
    """Raise TypeError: replica 0's buffers are kept, and a metric counts the complete batch."""
    metric = next((x for x in objects if isinstance(x, nnx.Metric)), None)
    if metric is not None:
        raise TypeError(
            f"{function}: {type(metric).__name__} is an argument, and every replica would count its own "
            "rows, of which replica 0's alone are kept. Return what it counts, and update it with the "
            "outputs."
        )
