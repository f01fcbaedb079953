"""LinenTree: a Linen module knows its submodules only while it runs, so one abstract call is watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen, traverse_util
from flax.core import meta

import jaxpar

from ..._typing import PyTree
from ...errors import MatchError
from .copying import place
from .paths import join
from .tree import FlaxModule, Leaf, Tree, Variables

PASSING = ("cache", "intermediates", "perturbations", "losses")
"""Collections that hold no weights."""


class LinenTree(Tree):
    """A Linen module. Without `variables` its leaves are shapes until `write` has made them."""

    def __init__(
        self, module: linen.Module, inputs: tuple, kwargs: dict[str, Any], variables: Variables | None
    ):
        self.module = module
        self.wrapped = isinstance(module, jaxpar.DataParallel)
        self.layers, shapes = _watch(module, inputs, kwargs)
        self.variables = shapes if variables is None else variables
        self.leaves, self.aliases = {}, {}
        self.names = {path: self._name(path.split(".")) for path in self.layers}
        self._keys: dict[str, tuple[str, ...]] = {}
        for key, value in _flat(self.variables).items():
            collection, *words = key
            if collection in PASSING:
                continue
            path = ".".join(words)
            if path in self._keys:
                raise MatchError(
                    f"{type(module).__name__}: {path} is in the collections {self._keys[path][0]} and "
                    f"{collection}; jaxpar tells leaves apart by their path alone. Rename one of them."
                )
            self._keys[path] = key
            self.names[path] = self._name(words)
            shape = np.shape(_bare(value))
            self.leaves[path] = Leaf(shape, np.dtype(_bare(value).dtype), collection == "params")
        self.files = {path: ".".join(key) for path, key in self._keys.items()}

    def values(self) -> dict[str, Any]:
        flat = _flat(self.variables)
        return {path: _bare(flat[key]) for path, key in self._keys.items()}

    def write(self, values: Mapping[str, np.ndarray]) -> Variables:
        flat = _flat(self.variables)
        for path, new in place(values, self.values()).items():
            old = flat[self._keys[path]]
            flat[self._keys[path]] = old.replace_boxed(new) if isinstance(old, meta.AxisMetadata) else new
        empty = [
            ".".join(key) for key, value in flat.items() if isinstance(_bare(value), jax.ShapeDtypeStruct)
        ]
        if empty:
            raise MatchError(
                f"{type(self.module).__name__}: {', '.join(empty)} would be left without values. Give "
                "variables=module.init(...) as what to start from."
            )
        self.variables = traverse_util.unflatten_dict(flat)
        return self.variables

    def _name(self, words: list[str]) -> str:
        """A path without the words that DataParallel and Sequential add."""
        kept: list[str] = []
        for i, word in enumerate(words):
            above = self.layers.get(join(*words[:i]))
            if isinstance(above, jaxpar.DataParallel) and word == "module":
                continue
            kept.append(word.removeprefix("layers_") if isinstance(above, linen.Sequential) else word)
        return join(*kept)


def _watch(
    module: linen.Module, inputs: tuple, kwargs: dict[str, Any]
) -> tuple[dict[str, FlaxModule], Variables]:
    """The modules by path in the order of calls, and the variables' shapes. Nothing is computed."""
    seen: dict[str, FlaxModule] = {}

    def note(call: Callable, args: tuple, named: dict, context: linen.module.InterceptorContext) -> PyTree:
        # A shared module is called several times and is one layer.
        seen.setdefault(".".join(context.module.path), context.module)
        return call(*args, **named)

    leaves, structure = jax.tree.flatten(inputs)
    arrays = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]

    def start(traced: list[jax.Array]) -> PyTree:
        mixed = list(leaves)  # a flag among the inputs must stay a Python value
        for i, x in zip(arrays, traced, strict=True):
            mixed[i] = x
        return module.init(jax.random.key(0), *jax.tree.unflatten(structure, mixed), **kwargs)

    with linen.intercept_methods(note):
        shapes = jax.eval_shape(start, [leaves[i] for i in arrays])
    return seen, shapes


def _flat(variables: Variables) -> dict[tuple[str, ...], Any]:
    plain = {name: dict(tree) for name, tree in dict(variables).items()}
    return traverse_util.flatten_dict(plain, is_leaf=lambda _, x: isinstance(x, meta.AxisMetadata))


def _bare(value: Any) -> Any:
    return value.unbox() if isinstance(value, meta.AxisMetadata) else value
