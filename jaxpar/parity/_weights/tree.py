"""Tree: a Flax model as layers and leaves by path, the same for NNX and Linen.

Linen's collections are not part of a path, so BatchNorm's `scale` and `mean` have the same parent in both.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from flax import linen, nnx, traverse_util
from flax.core import meta

import jaxpar

from ..._rulebook import Rule, rule_for
from ..._typing import PyTree, Shape
from ...errors import MatchError
from .._adapted_model import AdaptedModel, Node
from .._keras.model import KerasModel
from .copying import placed_like
from .pytree_model import as_flax


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def owner(leaf: str) -> str:
    return leaf.rpartition(".")[0]


def last(path: str) -> str:
    return path.rpartition(".")[2]


def inside(path: str, prefix: str) -> str | None:
    """Return a path relative to a prefix; None if the path does not begin with the prefix's keys."""
    if not prefix or path == prefix:
        return path if not prefix else ""
    return path[len(prefix) + 1 :] if path.startswith(prefix + ".") else None


def prefixes(name: str) -> list[str]:
    """Of "a.b.c": "", "a", "a.b" and "a.b.c"."""
    parts = name.split(".") if name else []
    return [".".join(parts[:n]) for n in range(len(parts) + 1)]


def torch_like(path: str) -> str:
    """Convert `blocks_0.attn`, as Linen numbers layers, to torch's `blocks.0.attn`."""
    return re.sub(r"_(\d+)(?=\.|$)", r".\1", path)


FlaxModule: TypeAlias = "nnx.Module | linen.Module"
JaxModel: TypeAlias = "FlaxModule | tuple[Callable[..., Any], PyTree] | Callable[..., Any]"  # for `as_flax`
Variables: TypeAlias = Mapping[str, Any]  # A Linen module's variables: trees of arrays by collection

PASSING_VARIABLES = (nnx.RngState, nnx.Cache, nnx.Intermediate, nnx.Perturbation)
PASSING_COLLECTIONS = ("cache", "intermediates", "perturbations", "losses")


def tree_of(
    module: JaxModel,
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
) -> Tree:
    if isinstance(module, type):
        raise TypeError(f"{module.__name__} is a class, and parity compares instances: make one.")
    module = as_flax(module)
    if isinstance(module, nnx.Module):
        return NNXTree(module)
    if isinstance(module, linen.Module):
        if inputs is None:
            raise TypeError(
                f"{type(module).__name__} is a Linen module, which only knows its layers when it is called: "
                "give inputs=(x,), the arguments of one call (shapes are enough: jax.ShapeDtypeStruct)."
            )
        return LinenTree(module, tuple(inputs), dict(kwargs or {}), variables)
    raise TypeError(
        f"{type(module).__module__}.{type(module).__qualname__} is no JAX model; load_torch and its like "
        "take first an nnx.Module, a linen.Module, a Keras model, (function, params) or a callable pytree, "
        "and torch's second."
    )


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    shape: Shape
    dtype: np.dtype
    parameter: bool  # False for torch's buffers


class Outline:
    """The structure of a Flax model, as pairing uses it.

    Attributes:
      layers: every module by path, in the order of definition (NNX) or of calls (Linen); the model is "".
      leaves: every array except random states, caches and intermediates; the first path of each.
      aliases: for the other paths of such variables, the first path.
      names: for every path, the path without the `layers` of Sequential and the `module` of DataParallel.
      wrapped: whether the model itself is a DataParallel, so that torch's names begin with `module.`
    """

    layers: dict[str, FlaxModule]
    leaves: dict[str, LeafSpec]
    aliases: dict[str, str]
    names: dict[str, str]
    wrapped: bool

    def rule(self, path: str) -> Rule | None:
        return rule_for(self.layers.get(path), self._shapes.get(path, {}))

    def real_path(self, path: str) -> str:
        """Return the full path for a mapping's path, which may omit DataParallel's `module` and similar."""
        if path in self.names:
            return path
        return next((real for real, name in self.names.items() if name == path), path)

    def first(self, leaf: str) -> str:
        return self.aliases.get(leaf, leaf)

    @functools.cached_property
    def _shapes(self) -> dict[str, dict[str, Shape]]:
        shapes: dict[str, dict[str, Shape]] = {}
        for path, leaf in self.leaves.items():
            shapes.setdefault(owner(path), {})[last(path)] = leaf.shape
        return shapes


class Tree(Outline, abc.ABC):
    """A Flax model, with or without values; `files` are the leaves' names with Linen's collection."""

    files: dict[str, str]

    @abc.abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the arrays by leaf path."""

    @abc.abstractmethod
    def write(self, values: Mapping[str, np.ndarray]) -> nnx.Module | Variables:
        """Replace the values; an NNX module is updated in place, for Linen new variables are returned."""


class NNXTree(Tree):
    def __init__(self, module: nnx.Module):
        self.module = module
        self.wrapped = _is_wrapper(module)
        self.layers, self.leaves, self.aliases, self.names = {}, {}, {}, {}
        self._variables: dict[str, nnx.Variable] = {}
        first: dict[int, str] = {}
        nodes = list(_walk(module, "", "", ()))
        for path, _, node in nodes:
            first[id(node)] = min(first.get(id(node), path), path, key=_in_state)
        for path, name, node in nodes:
            self.names[path] = name
            if not isinstance(node, nnx.Variable):
                self.layers[path] = node
            elif first[id(node)] != path:
                self.aliases[path] = first[id(node)]
            else:
                self._variables[path] = node
                value = node.get_raw_value()
                parameter = isinstance(node, nnx.Param)
                self.leaves[path] = LeafSpec(tuple(value.shape), np.dtype(value.dtype), parameter)
        self.files = {path: path for path in self.leaves}
        if isinstance(module, KerasModel):
            self.layers |= module._keras.layers  # the rulebook has rows for Keras's own

    def values(self) -> dict[str, Any]:
        return {path: variable.get_raw_value() for path, variable in self._variables.items()}

    def write(self, values: Mapping[str, np.ndarray]) -> nnx.Module:
        # All arrays are created before the first is stored, so that an error leaves the module unchanged.
        for path, array in placed_like(values, self.values()).items():
            self._variables[path].set_raw_value(array)
        return self.module._original() if isinstance(self.module, AdaptedModel) else self.module


def _in_state(path: str) -> list[tuple[bool, int, str]]:
    """NNX's sort key: a state lists a variable with two paths under the first in this order."""
    return [(not key.isdigit(), int(key) if key.isdigit() else 0, key) for key in path.split(".")]


def _walk(node: Any, path: str, name: str, above: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, torch-like name, node), parents first."""
    # Not `nnx.iter_graph`, which visits a shared node only once, while every path has a name in torch.
    if isinstance(node, nnx.Variable):
        if not isinstance(node, PASSING_VARIABLES) and hasattr(node.get_raw_value(), "shape"):
            yield path, name, node
        return
    if any(node is parent for parent in above):
        return  # a child that refers to its parent
    if isinstance(node, nnx.Module):
        yield path, name, node
    silent = _silent(node)
    for key, child in _children(node):
        child_name = name if key == silent else join(name, key)
        yield from _walk(child, join(path, key), child_name, (*above, node))


def _silent(node: Any) -> str | None:
    """Return the key that torch-like names leave out."""
    if isinstance(node, Node | AdaptedModel):
        return node._silent
    return "layers" if isinstance(node, nnx.Sequential) else "module" if _is_wrapper(node) else None


def _is_wrapper(node: Any) -> bool:
    return isinstance(node, (jaxpar.DataParallel, jaxpar.DistributedDataParallel))


def _children(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, (list, tuple, nnx.List)):
        return [(str(i), child) for i, child in enumerate(node)]
    if isinstance(node, dict):
        return [(str(key), child) for key, child in node.items()]
    if isinstance(node, nnx.Pytree):
        return [(key, child) for key, child in vars(node).items() if not key.startswith("_pytree__")]
    return []


class LinenTree(Tree):
    """Without `variables`, the leaves are shapes until `write` is called."""

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
            collection, *parts = key
            if collection in PASSING_COLLECTIONS:
                continue
            path = ".".join(parts)
            if path in self._keys:
                raise MatchError(
                    f"{type(module).__name__}: {path} is in the collections {self._keys[path][0]} and "
                    f"{collection}; jaxpar tells leaves apart by their path alone. Rename one of them."
                )
            self._keys[path] = key
            self.names[path] = self._name(parts)
            shape = np.shape(_bare(value))
            self.leaves[path] = LeafSpec(shape, np.dtype(_bare(value).dtype), collection == "params")
        self.files = {path: ".".join(key) for path, key in self._keys.items()}

    def values(self) -> dict[str, Any]:
        flat = _flat(self.variables)
        return {path: _bare(flat[key]) for path, key in self._keys.items()}

    def write(self, values: Mapping[str, np.ndarray]) -> Variables:
        flat = _flat(self.variables)
        for path, new in placed_like(values, self.values()).items():
            old = flat[self._keys[path]]
            flat[self._keys[path]] = old.replace_boxed(new) if isinstance(old, meta.AxisMetadata) else new
        empty = [".".join(key) for key, x in flat.items() if isinstance(_bare(x), jax.ShapeDtypeStruct)]
        if empty:
            raise MatchError(
                f"{type(self.module).__name__}: {', '.join(empty)} would be left without values. Give "
                "variables=module.init(...) as what to start from."
            )
        self.variables = traverse_util.unflatten_dict(flat)
        return self.variables

    def _name(self, parts: list[str]) -> str:
        remaining: list[str] = []
        for i, part in enumerate(parts):
            above = self.layers.get(join(*parts[:i]))
            if isinstance(above, jaxpar.DataParallel) and part == "module":
                continue
            remaining.append(part.removeprefix("layers_") if isinstance(above, linen.Sequential) else part)
        return join(*remaining)


def _watch(
    module: linen.Module, inputs: tuple, kwargs: dict[str, Any]
) -> tuple[dict[str, FlaxModule], Variables]:
    # A DataParallel's `init` calls the wrapped module's, which then has the path "".
    wrapped = isinstance(module, jaxpar.DataParallel)
    above = ("module",) if wrapped else ()
    modules: dict[str, FlaxModule] = {"": module} if wrapped else {}

    def note(call: Callable, args: tuple, named: dict, context: linen.module.InterceptorContext) -> PyTree:
        # A shared module is called several times, but is a single layer.
        modules.setdefault(".".join((*above, *context.module.path)), context.module)
        return call(*args, **named)

    leaves, structure = jax.tree.flatten((inputs, kwargs))
    arrays = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]

    def start(traced: list[jax.Array]) -> PyTree:
        mixed = list(leaves)  # flags must remain Python values
        for i, x in zip(arrays, traced, strict=True):
            mixed[i] = x
        args, named = jax.tree.unflatten(structure, mixed)
        return module.init(jax.random.key(0), *args, **named)

    with linen.intercept_methods(note):
        shapes = jax.eval_shape(start, [leaves[i] for i in arrays])
    return modules, shapes


def _flat(variables: Variables) -> dict[tuple[str, ...], Any]:
    plain = {name: dict(tree) for name, tree in dict(variables).items()}
    return traverse_util.flatten_dict(plain, is_leaf=lambda _, x: isinstance(x, meta.AxisMetadata))


def _bare(value: Any) -> Any:
    return value.unbox() if isinstance(value, meta.AxisMetadata) else value
