"""NNXTree: Variables by path, in the order in which the attributes were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flax import nnx

import jaxpar

from .copying import place
from .paths import join
from .tree import Leaf, Tree

PASSING = (nnx.RngState, nnx.Cache, nnx.Intermediate, nnx.Perturbation)
"""Variables that hold no weights: torch has nothing of the kind in a state_dict."""


class NNXTree(Tree):
    """An NNX module; `write` fills it in place."""

    def __init__(self, module: nnx.Module):
        self.module = module
        self.wrapped = _is_wrapper(module)
        self.layers, self.leaves, self.aliases, self.names = {}, {}, {}, {}
        self._variables: dict[str, nnx.Variable] = {}
        first: dict[int, str] = {}
        for path, name, node in _walk(module, "", "", ()):
            self.names[path] = name
            if not isinstance(node, nnx.Variable):
                self.layers[path] = node
            elif id(node) in first:
                self.aliases[path] = first[id(node)]
            else:
                first[id(node)] = path
                self._variables[path] = node
                value = node.get_raw_value()
                parameter = isinstance(node, nnx.Param)
                self.leaves[path] = Leaf(tuple(value.shape), np.dtype(value.dtype), parameter)
        self.files = {path: path for path in self.leaves}

    def values(self) -> dict[str, Any]:
        return {path: variable.get_raw_value() for path, variable in self._variables.items()}

    def write(self, values: Mapping[str, np.ndarray]) -> nnx.Module:
        # All arrays are made before the first is stored: what fails on the way changes nothing.
        for path, array in place(values, self.values()).items():
            self._variables[path].set_raw_value(array)
        return self.module


def _walk(node: Any, path: str, name: str, above: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    """Modules and Variables with their paths and their torch-like names, parents first.

    Not `nnx.iter_graph`: it visits a shared node once, and here each of its places is wanted.
    """
    if isinstance(node, nnx.Variable):
        if not isinstance(node, PASSING) and hasattr(node.get_raw_value(), "shape"):
            yield path, name, node
        return
    if any(node is parent for parent in above):
        return  # a child that refers to its parent
    if isinstance(node, nnx.Module):
        yield path, name, node
    silent = "layers" if isinstance(node, nnx.Sequential) else "module" if _is_wrapper(node) else None
    for key, child in _children(node):
        below = name if key == silent else join(name, key)
        yield from _walk(child, join(path, key), below, (*above, node))


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
