"""Run one collective: a compiled program over one device of each rank, applied to process-local arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import PyTreeDef

from .._devices.context import outside
from .._tree import check_alive, check_leaf, paths
from .._typing import PyTree
from ..errors import LeafError
from . import call_log
from ._bodies import RANK, Body
from .connecting import connect
from .group import Group
from .step_agreement import ledger

Cannot = Callable[[np.dtype, str], str]
"""Function of a dtype and an option that returns why the operation does not support the dtype, or ""."""

_calls: dict[str, itertools.count] = {}
"""Call counters by group folder. Ranks compare calls with equal numbers."""


@outside
def run(
    group: Group, function: str, body: Body, option: str, x: PyTree, cannot: Cannot = lambda *_: ""
) -> PyTree:
    """Return the results of `body` on this rank's leaves. All ranks of the group must call it.

    `function` is the collective's public name, `option` is passed to `body`, and `cannot` rejects dtypes.
    """
    leaves, treedef = jax.tree.flatten(x)
    names = paths(x, "x")
    check_alive(leaves, names, function)
    arrays = [local(leaf, name, function) for leaf, name in zip(leaves, names, strict=True)]
    for array, name in zip(arrays, names, strict=True):
        if why := cannot(array.dtype, option):
            raise LeafError(f"{function}: {name} is {array.dtype}{list(array.shape)}: {why}")
    _agree(group, function, option, treedef, arrays, names)
    if not arrays:
        return x
    key_impls = [jax.random.key_impl(y) if is_key(y.dtype) else None for y in arrays]
    arrays = [jax.random.key_data(y) if impl else y for y, impl in zip(arrays, key_impls, strict=True)]
    # Concatenated along their first axis, the ranks' arrays form a global array without a copy. Scalars have
    # no first axis, so they get one for the call.
    is_scalar = tuple(y.ndim == 0 for y in arrays)
    arrays = [y.reshape(1) if scalar else y for y, scalar in zip(arrays, is_scalar, strict=True)]
    compiled, sharding = _program(body, option, group, is_scalar)
    global_arrays = [
        jax.make_array_from_single_device_arrays((group.size * y.shape[0], *y.shape[1:]), sharding, [y])
        for y in arrays
    ]
    results = jax.tree.map(lambda y: y.addressable_data(0), compiled(global_arrays))
    leaves = [
        jax.tree.map(lambda data, kind=impl: jax.random.wrap_key_data(data, impl=kind), y) if impl else y
        for y, impl in zip(results, key_impls, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def local(leaf: object, name: str, function: str) -> jax.Array:
    """Return a leaf as one array on this process's first device."""
    check_leaf(leaf, name, function)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise LeafError(
            f"{function}: {name} lies on devices of other processes too; these functions are for arrays of "
            "this process alone. A global array has no need of them: use jax.numpy on it inside jax.jit."
        )
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise LeafError(f"{function}: {name} is a {type(leaf).__qualname__}, and not an array.")
    return jax.device_put(jnp.asarray(leaf), jax.local_devices()[0])


def is_key(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _agree(
    group: Group, function: str, option: str, treedef: PyTreeDef, arrays: list[jax.Array], names: list[str]
) -> None:
    book = ledger("collectives", group)
    if book is None:
        return
    call_log.begin(function, "collectives", group)
    number = next(_calls.setdefault(group.folder, itertools.count(1)))
    key = (function, option, treedef, tuple((x.shape, str(x.dtype)) for x in arrays))
    book.check(
        number,
        key,
        lambda: (
            {"function": f"{function}({option})", "the tree": str(treedef)}
            | {name: f"{x.dtype}{list(x.shape)}" for x, name in zip(arrays, names, strict=True)}
        ),
    )


@functools.lru_cache(maxsize=256)
def _program(body: Body, option: str, group: Group, numbers: tuple) -> tuple[Callable, NamedSharding]:
    devices = _one_device_each(group)
    connect(devices, group)
    mesh = Mesh(np.array(devices), (RANK,))

    def program(xs: list[jax.Array]) -> PyTree:
        local_arrays = [x.reshape(()) if number else x for x, number in zip(xs, numbers, strict=True)]
        return [body(x, group.size, option) for x in local_arrays]

    results = P(RANK) if getattr(body, "one_per_rank", False) else P()
    # `check_vma` cannot see that `send` and gathers give equal values on all ranks.
    mapped = jax.shard_map(program, mesh=mesh, in_specs=P(RANK), out_specs=results, check_vma=False)
    return jax.jit(mapped), NamedSharding(mesh, P(RANK))


def _one_device_each(group: Group) -> list[jax.Device]:
    # `jax.devices` does not promise to list processes in order, and a subgroup has its own order.
    first: dict[int, jax.Device] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return [first[rank] for rank in group.ranks]
