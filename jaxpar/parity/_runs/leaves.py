"""Read the named arrays of pytrees, modules and optimizers of torch and JAX, without importing either."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def leaves(tree: Any, part: str, names: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return the tensors or arrays of a tree by dotted names.

    Of torch modules, the part decides whether parameters, gradients or buffers are returned; torch
    optimizers have state, by `names` of parameters by id.
    """
    if tree is None:
        return {}
    if callable(getattr(tree, "named_parameters", None)):
        if part == "extra":
            return dict(tree.named_buffers())
        parameters = dict(tree.named_parameters())
        if part == "gradients":
            return {name: p.grad for name, p in parameters.items() if p.grad is not None}
        return parameters
    if hasattr(tree, "param_groups") and hasattr(tree, "state"):
        return _optimizer_state(tree, names or {})
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(tree, nnx.Module):
        tree = nnx.state(tree, nnx.BatchStat if part == "extra" else nnx.Param)
    jax = sys.modules.get("jax")
    if jax is None:
        return {_bare(name): x for name, x in _flattened(tree, "")}
    values, form = jax.tree.flatten(tree)
    return dict(zip(_names_of(tree, form), values, strict=True))


_names: dict[Any, list[str]] = {}
"""The names of the leaves of a tree's structure: a loop has the same trees in every step."""


def _names_of(tree: Any, form: Any) -> list[str]:
    try:
        names = _names.get(form)
    except ValueError:  # a structure that holds a NumPy array cannot be compared
        return _named(tree)
    if names is None:
        names = _named(tree)
        if len(_names) > 64:
            _names.clear()
        _names[form] = names
    return names


def _named(tree: Any) -> list[str]:
    util = sys.modules["jax"].tree_util
    paths = [path for path, _ in util.tree_leaves_with_path(tree)]
    return [_bare(util.keystr(path, simple=True, separator=".")) for path in paths]


def _bare(name: str) -> str:
    for suffix in (".value", ".raw_value"):
        name = name.removesuffix(suffix)
    return name


def _flattened(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves as JAX does where JAX is not imported."""
    if tree is None:
        return
    if isinstance(tree, Mapping):
        children = [(str(key), tree[key]) for key in sorted(tree, key=str)]
    elif isinstance(tree, tuple | list):
        keys: Sequence[Any] = getattr(tree, "_fields", range(len(tree)))
        children = [(str(key), value) for key, value in zip(keys, tree, strict=True)]
    else:
        yield name, tree
        return
    for key, value in children:
        yield from _flattened(value, f"{name}.{key}" if name else key)


def _optimizer_state(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    members = [p for group in optimizer.param_groups for p in group["params"]]
    arrays = {}
    for i, p in enumerate(members):
        for key, value in optimizer.state.get(p, {}).items():
            if key != "step" and value is not None and not isinstance(value, str):
                arrays[f"{key}.{names.get(id(p), str(i))}"] = value
    return arrays


def settings(optimizer: Any, names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of a torch optimizer, by parameter; none for other objects."""
    if not hasattr(optimizer, "param_groups"):
        return {}
    described: dict[str, dict[str, Any]] = {}
    i = 0
    for group in optimizer.param_groups:
        values: dict[str, Any] = {"kind": type(optimizer).__name__}
        for key, value in group.items():
            if isinstance(value, bool | int | float) or (
                isinstance(value, tuple) and all(isinstance(x, int | float) for x in value)
            ):
                values[key] = value
            elif hasattr(value, "item") and key != "params":
                values[key] = value.item()
        for p in group["params"]:
            described[names.get(id(p), str(i))] = values
            i += 1
    return described


def array_of(x: Any, name: str) -> np.ndarray:
    """Return a leaf as a NumPy array, without a copy where the memory is the host's.

    Raises:
      TypeError: the leaf is not numeric, or not on this process.
    """
    if hasattr(x, "detach"):
        x = x.detach()
        if str(x.dtype) == "torch.bfloat16":
            x = x.float()
        return x.resolve_conj().cpu().numpy()
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if not x.is_fully_addressable and x.is_fully_replicated:
            x = x.addressable_data(0)
        elif not x.is_fully_addressable:
            if name.startswith("batch.") and x.sharding.shard_shape(x.shape)[1:] == x.shape[1:]:
                # Each row once: copies have other replica numbers.
                rows = [np.asarray(s.data) for s in x.addressable_shards if s.replica_id == 0]
                return np.concatenate([np.zeros((0, *x.shape[1:]), x.dtype), *rows])
            raise TypeError(
                f"parity.Tap: {name} is distributed over processes; gather it before it is tapped."
            )
    array = np.asarray(x)
    if array.dtype.kind not in "fiubc" and array.dtype.name not in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ):
        raise TypeError(f"parity.Tap: {name} is {type(x).__name__} {x!r:.60}, not an array of numbers.")
    return array.view(array.real.dtype) if array.dtype.kind == "c" and array.ndim else array


def dtype_of(x: Any) -> str:
    """Return the type of a leaf's elements without the framework's name: "float32", "bfloat16"."""
    return _type_name(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype)


@functools.cache
def _type_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
