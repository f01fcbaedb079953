"""Flatten a model's outputs to arrays whose names are the same in both frameworks.

Containers are walked by field names, so `Out(logits=x)` on one side corresponds to `{"logits": x}` on the
other. A single array is named "". An object that holds arrays and cannot be walked is an error.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from ...errors import LeafError

IsArray = Callable[[Any], bool]
NUMBERS = (bool, int, float, complex)  # Python's
CONSTANTS = (type(None), str, bytes, *NUMBERS)  # Leaves that hold no arrays
DEEP = 4  # Depth to which an unknown object's attributes are searched for arrays


@dataclasses.dataclass
class Outputs:
    """A model's output arrays and Python numbers by name; `left_out` are the names that were not chosen."""

    arrays: dict[str, Any]
    sole: str | None = None  # path of a single array, "" for a bare one
    left_out: tuple[str, ...] = ()
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)


def outputs_of(side: str, tree: Any, is_array: IsArray, chosen: Mapping[str, str] | None = None) -> Outputs:
    """LeafError if an object that is not a container holds arrays."""
    arrays = named(tree, is_array)
    if chosen is not None:
        return _chosen(side, arrays, chosen)
    _check_all_seen(side, tree, is_array)
    numbers = named(tree, lambda leaf: isinstance(leaf, NUMBERS))
    if len(arrays) != 1:
        return Outputs(arrays, numbers=numbers)
    ((path, array),) = arrays.items()
    return Outputs({"": array}, path, numbers=numbers)


def _chosen(side: str, available: dict[str, Any], chosen: Mapping[str, str]) -> Outputs:
    arrays: dict[str, Any] = {}
    left_out = set(available)
    for name, common in chosen.items():
        candidates = (name, f"[{name!r}]", f"[{name}]")
        exact = next((candidate for candidate in candidates if _below(available, candidate)), None)
        if exact is None:
            names = ", ".join(repr(path) for path in available) or "none"
            raise ValueError(
                f"parity.compare: {name!r} in outputs= is no output of {side}. It returns {names}; '' is an "
                "array that stands alone."
            )
        nested = _below(available, exact)
        left_out -= set(nested)
        arrays |= {common + path.removeprefix(exact): available[path] for path in nested}
    return Outputs(arrays, left_out=tuple(path for path in available if path in left_out))


def _below(arrays: Mapping[str, Any], name: str) -> list[str]:
    return [path for path in arrays if path == name or (name and path.startswith(f"{name}["))]


def named(tree: Any, is_array: IsArray) -> dict[str, Any]:
    """Other objects than arrays are skipped."""
    return {path: leaf for path, leaf in _walk(tree, "") if is_array(leaf)}


def _check_all_seen(side: str, tree: Any, is_array: IsArray) -> None:
    for path, leaf in _walk(tree, ""):
        if is_array(leaf) or isinstance(leaf, CONSTANTS):
            continue
        hidden = _hidden(leaf, is_array, DEEP, set())
        if hidden is not None:
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise LeafError(
                f"parity.compare: outputs{path} of {side} is a {kind}, whose {hidden.lstrip('.')} would not "
                "be compared. Return arrays in tuples, dicts, named tuples or dataclasses, or wrap the model "
                "so that it leaves this object out."
            )


def _walk(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = _children(tree)
    if children is None:
        yield path, tree
        return
    for key, child in children:
        yield from _walk(child, f"{path}[{key!r}]")


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(node, Mapping):  # first: a ModelOutput is a dataclass too, with None fields
        return list(node.items())
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return list(zip(node._fields, node, strict=True))
    if isinstance(node, (tuple, list)):
        return list(enumerate(node))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [(field.name, getattr(node, field.name)) for field in dataclasses.fields(node)]
    # Registered pytrees, one level deep: `is_leaf` stops at the children, whose names _walk needs.
    if jax.tree_util.all_leaves([node]):
        return None
    one_level = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda x: x is not node)
    return [(_key(path), child) for path, child in one_level]


def _key(path: tuple[Any, ...]) -> Any:
    keys = [getattr(path[0], name) for name in ("key", "name", "idx") if hasattr(path[0], name)]
    return keys[0] if keys else str(path[0])


def _hidden(value: Any, is_array: IsArray, depth: int, visited: set[int]) -> str | None:
    if is_array(value):
        return ""
    if not depth or id(value) in visited or isinstance(value, (*CONSTANTS, type)) or callable(value):
        return None
    visited.add(id(value))
    for path, child in _parts(value):
        inner_path = _hidden(child, is_array, depth - 1, visited)
        if inner_path is not None:
            return path + inner_path
    return None


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    children = _children(value)
    if children is not None:
        return [(f"[{key!r}]", child) for key, child in children]
    if isinstance(value, (set, frozenset, collections.deque)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    return [(f".{name}", child) for name, child in getattr(value, "__dict__", {}).items()]
