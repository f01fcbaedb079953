"""Records: what a forward pass leaves in its module, by `sow` and `nnx.capture`.

Such values have rows like outputs, so they are gathered like outputs; a buffer would be replica 0's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..._typing import PyTree

CAPTURES = "__captures__"
"""The attribute in which `nnx.capture` collects values while it runs, a Variable of a dict for each type."""

PERTURBATIONS = "jaxpar.perturbations"
"""The keyword argument in which perturbations, which have rows, reach the replicas."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Records:
    """Values by their paths in the module; the paths are static."""

    paths: tuple[Hashable, ...] = dataclasses.field(default=(), metadata={"static": True})
    values: tuple[PyTree, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths)

    def items(self) -> Any:
        return zip(self.paths, self.values, strict=True)


def records_of(by_path: dict[Any, PyTree]) -> Records:
    """Return records of arrays; numbers become arrays."""
    return Records(tuple(by_path), tuple(jax.tree.map(_array, value) for value in by_path.values()))


def _array(x: Any) -> Any:
    return np.asarray(x, jnp.result_type(x)) if isinstance(x, (bool, int, float, complex)) else x


def is_sown(path: tuple, leaf: Any) -> bool:
    """Whether a Variable holds values of a forward pass, and none that the next one reads."""
    return CAPTURES in path or isinstance(leaf, nnx.Intermediate)


@contextlib.contextmanager
def lists_without_captures(module: nnx.Module) -> Iterator[None]:
    """Inside, no `nnx.List` has captures: it sows nothing, and Flax cannot sort numbers and names."""
    lists = [node for _, node in nnx.iter_modules(module) if isinstance(node, nnx.List)]
    hidden = [(vars(node), vars(node).pop(CAPTURES)) for node in lists if CAPTURES in vars(node)]
    try:
        yield
    finally:
        for attributes, captures in hidden:
            attributes[CAPTURES] = captures


def nothing_sown(path: tuple) -> PyTree:
    # A new dict each time, because `sow` puts values into it.
    return {} if CAPTURES in path else ()


NOTHING = np.zeros((), np.int8)
"""Stands for what was sown among a module's arrays, where every place needs one."""


def new_variables(module: nnx.Module, paths: set[tuple]) -> dict[Any, PyTree]:
    """Return the values that `sow` has put into new attributes, by path and type of Variable."""
    flat = nnx.to_flat_state(nnx.state(module, graph=True))
    new = [(path, leaf) for path, leaf in flat if path not in paths and isinstance(leaf, nnx.Variable)]
    # `sow` collects tuples by default; any other new Variable is an attribute that a forward rebinds.
    return {(path, type(leaf)): x for path, leaf in new if isinstance(x := leaf.get_raw_value(), tuple)}


def put_new(module: nnx.Module, path: tuple, kind: type[nnx.Variable], value: PyTree) -> None:
    setattr(functools.reduce(_child, path[:-1], module), path[-1], kind(value))


def _child(node: Any, name: Any) -> Any:
    return node[name] if isinstance(name, int) or isinstance(node, dict) else getattr(node, name)


def joined(before: PyTree, value: PyTree, name: str) -> PyTree:
    """Return what several calls have sown: dicts by their keys, tuples one after the other."""
    if isinstance(before, dict) and isinstance(value, dict):
        return {
            **before,
            **{key: joined(before.get(key, ()), x, f"{name}.{key}") for key, x in value.items()},
        }
    if isinstance(before, tuple) and isinstance(value, tuple):
        return before + value
    if isinstance(before, tuple) and not before:
        return value
    raise ValueError(
        f"DataParallel: {name} was sown with a reduce_fn of its own in two calls, and each call's values are "
        "gathered from the replicas. Capture each call by itself, or use the default reduce_fn."
    )


def perturbations_of(leaves: Sequence[Any], paths: Sequence[tuple]) -> dict[str, PyTree]:
    """Return the perturbations that `nnx.capture(init=...)` gives to a module, by their leaf's number."""
    return {
        str(i): value
        for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
        if CAPTURES in path and isinstance(leaf, nnx.Perturbation) and (value := leaf.get_raw_value())
    }
