"""Collectives on process-local arrays: one array of each rank in, one or all of them out.

torch's work in place on tensors; these return arrays. A call stacks the ranks' arrays to one global array
[W, ...] over one device of each process, and runs a program that is compiled once for each signature.
Before the first call of a signature the ranks compare tree, shapes and dtypes, so that a difference is an
error with both values instead of a hang.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import PyTreeDef

from .._tree import check_alive, check_leaf, paths
from .._typing import PyTree
from ..errors import GroupError, LeafError
from . import whereabouts
from .group import Group, default_group
from .step_agreement import ledger

RANK = "rank"
Body = Callable[[jax.Array, int, str], PyTree]
"""What a program does with this rank's array, the number of ranks, and an option."""
Cannot = Callable[[np.dtype, str], str]
"""Why an operation does not exist for a dtype; "" if it does."""
OPS = ("sum", "mean", "max", "min", "product")

_calls: dict[int, itertools.count] = {}
"""Numbers the calls in each group, by its generation: ranks compare those of the same number."""


def all_reduce(x: PyTree, op: str = "sum") -> PyTree:
    """The sum (mean, max, min, product) of every rank's `x`, on every rank.

    Args:
      x: a pytree of process-local arrays or numbers, of the same shapes and dtypes on all ranks.
      op: one of `"sum"`, `"mean"`, `"max"`, `"min"`, `"product"`. For booleans, sum and max are "any",
        product and min are "all"; only floats and complex numbers have a mean.

    Returns:
      The tree with arrays of the same shapes and dtypes, on this process's first device.

    Raises:
      GroupError: there is no group; an unknown `op`. LeafError: a leaf without that operation.
      DivergenceError: the ranks' trees, shapes or dtypes differ.

    torch counterpart: `torch.distributed.all_reduce`, which works in place; `"mean"` is ReduceOp.AVG.
    """
    _check_op(op, "all_reduce")
    return _run("all_reduce", _reduce, op, x, _cannot)


def all_gather(x: PyTree) -> list[PyTree]:
    """Every rank's `x`, in rank order, on every rank.

    Raises: as `all_reduce`.

    torch counterpart: `torch.distributed.all_gather`, which fills a list.
    """
    group = default_group()
    pieces = _run("all_gather", _gather, "", x)
    return [jax.tree.map(lambda _, every, r=rank: every[r], x, pieces) for rank in range(group.size)]


def broadcast(x: PyTree, src: int = 0) -> PyTree:
    """Rank `src`'s `x` on every rank, bit for bit. The `x` of the others gives shapes and dtypes.

    Raises: as `all_reduce`; GroupError for a `src` that does not exist.

    torch counterpart: `torch.distributed.broadcast`, which works in place.
    """
    group = default_group()
    if not 0 <= src < group.size:
        raise GroupError(f"broadcast: src={src} is not a rank; ranks are 0 to {group.size - 1}.")
    return _run("broadcast", _send, str(src), x)


def reduce_scatter(x: PyTree, op: str = "sum") -> PyTree:
    """Piece r of the sum (mean, max, min, product) of every rank's `x`, on rank r.

    Args:
      x: a list of W trees, one for each rank; or a tree of arrays [W*k, ...], of which rank r gets the rows
        r*k to (r+1)*k.
      op: as in `all_reduce`.

    Raises: as `all_reduce`; LeafError for an array whose rows are not divisible by W.

    torch counterpart: `torch.distributed.reduce_scatter` for a list, `reduce_scatter_tensor` for arrays.
    """
    group = default_group()
    _check_op(op, "reduce_scatter")
    if isinstance(x, list):
        if len(x) != group.size:
            raise GroupError(
                f"reduce_scatter: a list of {len(x)} for {group.size} ranks; one piece for each."
            )
        stacked = jax.tree.map(lambda *pieces: jnp.stack(pieces), *x)
        mine = _run("reduce_scatter", _reduce_scatter, op, stacked, _cannot)
        return jax.tree.map(lambda y: y.reshape(y.shape[1:]), mine)
    for leaf, name in zip(jax.tree.leaves(x), paths(x, "x"), strict=True):
        shape = np.shape(leaf)
        if not shape or shape[0] % group.size:
            raise LeafError(
                f"reduce_scatter: {name} has shape {shape}, whose rows cannot be shared out evenly to "
                f"{group.size} ranks; pass a list of {group.size} pieces of one shape, or fill it up."
            )
    return _run("reduce_scatter", _reduce_scatter, op, x, _cannot)


# ------------------------------------------------------------------------------------------- bodies


def _reduce(x: jax.Array, W: int, op: str) -> jax.Array:
    if x.dtype == bool:
        counts = jax.lax.psum(x.astype(jnp.int32), RANK)
        return counts > 0 if op in ("sum", "max") else counts == W
    if op in ("max", "min"):
        return (jax.lax.pmax if op == "max" else jax.lax.pmin)(x, RANK)
    if op == "product":
        return jnp.prod(jax.lax.all_gather(x, RANK), 0, dtype=x.dtype)
    total = jax.lax.psum(x, RANK)
    return _divided(total, W) if op == "mean" else total


def _divided(total: jax.Array, W: int) -> jax.Array:
    """Divides by W, rounding once."""
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return jax.lax.complex(_divided(total.real, W), _divided(total.imag, W))
    # If XLA saw the constant, it would multiply by 1 / W, which is rounded itself.
    return total / jax.lax.optimization_barrier(jnp.full(total.shape, W, total.dtype))


def _gather(x: jax.Array, W: int, option: str) -> list[jax.Array]:
    together = jax.lax.all_gather(x, RANK)
    return [together[rank] for rank in range(W)]


def _send(x: jax.Array, W: int, src: str) -> jax.Array:
    """A sum of integers of which all but one are 0: exact in every bit, also for -0.0 and NaN."""
    bits = _bits(x)
    bits = jax.lax.psum(jnp.where(jax.lax.axis_index(RANK) == int(src), bits, jnp.zeros_like(bits)), RANK)
    return _from_bits(bits, x.dtype)


def _reduce_scatter(x: jax.Array, W: int, op: str) -> jax.Array:
    if op in ("sum", "mean") and x.dtype != bool:
        total = jax.lax.psum_scatter(x, RANK, scatter_dimension=0, tiled=True)
        return _divided(total, W) if op == "mean" else total
    k = x.shape[0] // W
    return jax.lax.dynamic_slice_in_dim(_reduce(x, W, op), jax.lax.axis_index(RANK) * k, k)


def _bits(x: jax.Array) -> jax.Array:
    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _bits(jnp.stack([x.real, x.imag]))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.bool_) or jnp.issubdtype(dtype, jnp.integer):
        return bits.astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        halves = jax.lax.bitcast_convert_type(bits, f"float{4 * dtype.itemsize}")
        return jax.lax.complex(halves[0], halves[1])
    return jax.lax.bitcast_convert_type(bits, dtype)


# -------------------------------------------------------------------------------------- one call


def _run(function: str, body: Body, option: str, x: PyTree, cannot: Cannot = lambda *_: "") -> PyTree:
    group = default_group()
    leaves, treedef = jax.tree.flatten(x)
    names = paths(x, "x")
    check_alive(leaves, names, function)
    arrays = [_local(leaf, name, function) for leaf, name in zip(leaves, names, strict=True)]
    for array, name in zip(arrays, names, strict=True):
        if why := cannot(array.dtype, option):
            raise LeafError(f"{function}: {name} is {array.dtype}{list(array.shape)}: {why}")
    _agree(group, function, option, treedef, arrays, names)
    if not arrays:
        return x
    kinds = [jax.random.key_impl(y) if _is_key(y.dtype) else None for y in arrays]
    arrays = [jax.random.key_data(y) if kind else y for y, kind in zip(arrays, kinds, strict=True)]
    # The ranks' arrays lie side by side along their first axis, so nothing is copied; a number gets one.
    numbers = tuple(y.ndim == 0 for y in arrays)
    arrays = [y.reshape(1) if number else y for y, number in zip(arrays, numbers, strict=True)]
    compiled, sharding = _program(body, option, group, numbers)
    wide = [
        jax.make_array_from_single_device_arrays((group.size * y.shape[0], *y.shape[1:]), sharding, [y])
        for y in arrays
    ]
    results = jax.tree.map(lambda y: y.addressable_data(0), compiled(wide))
    return jax.tree.unflatten(treedef, [_as_keys(y, kind) for y, kind in zip(results, kinds, strict=True)])


def _local(leaf: object, name: str, function: str) -> jax.Array:
    """A leaf as one array on this process's first device."""
    check_leaf(leaf, name, function)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise LeafError(
            f"{function}: {name} lies on devices of other processes too; these functions are for arrays of "
            "this process alone. A global array has no need of them: use jax.numpy on it inside jax.jit."
        )
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise LeafError(f"{function}: {name} is a {type(leaf).__qualname__}, and not an array.")
    return jax.device_put(jnp.asarray(leaf), jax.local_devices()[0])


def _is_key(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _as_keys(data: PyTree, kind: Hashable | None) -> PyTree:
    return jax.tree.map(lambda y: jax.random.wrap_key_data(y, impl=kind), data) if kind else data


def _agree(
    group: Group, function: str, option: str, treedef: PyTreeDef, arrays: list[jax.Array], names: list[str]
) -> None:
    book = ledger("collectives")
    if book is None:
        return
    whereabouts.begin(function, "collectives")
    number = next(_calls.setdefault(group.generation, itertools.count(1)))
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
    """The compiled program and the sharding of its arguments; `jit` keeps one for each signature."""
    mesh = Mesh(np.array(_one_device_each()), (RANK,))

    def program(xs: list[jax.Array]) -> PyTree:
        own = [x.reshape(()) if number else x for x, number in zip(xs, numbers, strict=True)]
        return [body(x, group.size, option) for x in own]

    results = P(RANK) if body is _reduce_scatter else P()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=P(RANK), out_specs=results, check_vma=False)
    return jax.jit(mapped), NamedSharding(mesh, P(RANK))


def _one_device_each() -> list[jax.Device]:
    # JAX promises no order of the processes in `jax.devices`.
    first: dict[int, jax.Device] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return [first[rank] for rank in sorted(first)]


# ---------------------------------------------------------------------------------------- checks


def _check_op(op: str, function: str) -> None:
    default_group()
    if op not in OPS:
        raise GroupError(f"{function}: op={op!r} is unknown; write one of {', '.join(map(repr, OPS))}.")


def _cannot(dtype: np.dtype, op: str) -> str:
    if _is_key(dtype):
        return "random keys are not numbers; all_gather and broadcast take them."
    if op == "mean" and not jnp.issubdtype(dtype, jnp.inexact):
        return "only floats and complex numbers have a mean; sum them and divide, or convert them."
    if op in ("max", "min") and jnp.issubdtype(dtype, jnp.complexfloating):
        return f"complex numbers have no {op}."
    return ""
