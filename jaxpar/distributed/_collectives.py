"""Collectives on process-local arrays: each rank passes its array and gets one or all results.

torch's output arguments do not exist, nor `async_op`, because JAX dispatches asynchronously anyway.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .._tree import paths
from .._typing import PyTree
from ..errors import DivergenceError, GroupError, LeafError
from . import _bodies as bodies
from ._collective_call import is_key, local, run
from .exchange import exchange_json
from .group import Group, ProcessGroup, member, root


def all_reduce(x: PyTree, op: str = "sum", group: ProcessGroup = None) -> PyTree:
    """Reduce every rank's `x` by `op`, and return the result on every rank.

    Args:
      x: a pytree of process-local arrays or numbers, with equal shapes and dtypes on all ranks.
      op: a `ReduceOp` or its value: `"sum"`, `"mean"`, `"max"`, `"min"`, `"product"`, `"band"`, `"bor"`,
        `"bxor"`. For booleans, sum and max mean "any", product and min mean "all". The mean needs floats or
        complex numbers; bitwise operations need integers or booleans.
      group: the participating ranks, see `new_group`.

    Returns:
      The tree with arrays of the same shapes and dtypes, on this process's first device. A rank outside the
      group gets `x` itself and a warning.

    Raises:
      GroupError: no process group is initialized, or `op` is unknown. LeafError: a leaf does not support
        `op`. DivergenceError: the ranks' trees, shapes or dtypes differ.

    torch counterpart: `torch.distributed.all_reduce`, which works in place.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(dist.all_reduce(jnp.array([1, 2]), "sum"))
    [1 2]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "all_reduce")) is None:
        return x
    return run(pg, "all_reduce", bodies.reduce, _checked(op, "all_reduce"), x, _cannot)


def reduce(
    x: PyTree,
    dst: int | None = None,
    op: str = "sum",
    group: ProcessGroup = None,
    *,
    group_dst: int | None = None,
) -> PyTree:
    """Reduce every rank's `x` by `op`, and return the result on rank `dst`; the others get None.

    Args:
      x, op, group: as in `all_reduce`.
      dst, group_dst: the receiving rank, as a rank of the default group or of `group`. Pass exactly one.

    Raises: as `all_reduce`; GroupError if `dst` is outside the group.

    torch counterpart: `torch.distributed.reduce`, which leaves the other ranks' tensors undefined. XLA has no
    reduction to one device, so this takes as long as an all_reduce.
    """
    if (pg := member(group, "reduce")) is None:
        return None
    root_rank = root(pg, dst, group_dst, None, "reduce", "dst")
    # `root` raises on all ranks alike, before any of them enters the collective.
    total = run(pg, "reduce", bodies.reduce, _checked(op, "reduce"), x, _cannot)
    return total if pg.rank == root_rank else None


def all_gather(x: PyTree, group: ProcessGroup = None, *, uneven: bool = False) -> list[PyTree] | None:
    """Return every rank's `x`, in rank order, on every rank.

    Args:
      x, group: as in `all_reduce`; `x` may hold random keys, too.
      uneven: whether shapes may differ between ranks (numbers of axes and dtypes may not). The ranks then
        exchange their shapes over the host at every call, which takes about 1 ms.

    Returns:
      A list with one tree per rank of the group. A rank outside the group gets None and a warning.

    Raises: as `all_reduce`.

    torch counterpart: `torch.distributed.all_gather`, which supports uneven sizes with NCCL only.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(*dist.all_gather(jnp.array([1, 2])))
    [1 2]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "all_gather")) is None:
        return None
    if uneven:
        return _uneven(pg, x)
    # XLA needs one shape on all ranks, so uneven arrays would be compared at every call: only on request.
    try:
        return _gathered(pg, "all_gather", x)
    except DivergenceError as error:
        hint = "If only shapes are to differ, write all_gather(x, uneven=True) on all ranks."
        raise DivergenceError(f"{error} {hint}") from None


def all_gather_into_tensor(x: PyTree, group: ProcessGroup = None) -> PyTree:
    """Concatenate every rank's array [k, ...] to [W*k, ...], on every rank; scalars become [W].

    A rank outside the group gets None and a warning. Raises: as `all_reduce`.

    torch counterpart: `torch.distributed.all_gather_into_tensor`.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(dist.all_gather_into_tensor(jnp.array([[1, 2]])))
    [[1 2]]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "all_gather_into_tensor")) is None:
        return None
    pieces = _gathered(pg, "all_gather_into_tensor", x)
    return jax.tree.map(lambda *arrays: jnp.concatenate([jnp.atleast_1d(y) for y in arrays]), *pieces)


def gather(
    x: PyTree, dst: int | None = None, group: ProcessGroup = None, *, group_dst: int | None = None
) -> list[PyTree] | None:
    """Return every rank's `x`, in rank order, on rank `dst`; the others get None.

    Args:
      x, group: as in `all_gather`. dst, group_dst: as in `reduce`; 0 if both are omitted.

    Raises: as `reduce`.

    torch counterpart: `torch.distributed.gather`, which fills a list. This takes as long as an all_gather.
    """
    if (pg := member(group, "gather")) is None:
        return None
    root_rank = root(pg, dst, group_dst, 0, "gather", "dst")
    pieces = _gathered(pg, "gather", x)
    return pieces if pg.rank == root_rank else None


def broadcast(
    x: PyTree, src: int | None = None, group: ProcessGroup = None, *, group_src: int | None = None
) -> PyTree:
    """Return rank `src`'s `x` on every rank, bit for bit.

    Args:
      x: on `src` the values to send; on the other ranks a tree of the same shapes and dtypes.
      group: as in `all_gather`.
      src, group_src: the sending rank, as a rank of the default group or of `group`. 0 if both are omitted.

    Returns and Raises: as `all_reduce`; GroupError if `src` does not exist.

    torch counterpart: `torch.distributed.broadcast`, which works in place and has no default `src`.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(dist.broadcast({"w": jnp.ones(2)}, src=0)["w"])
    [1. 1.]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "broadcast")) is None:
        return x
    return run(pg, "broadcast", bodies.send, str(root(pg, src, group_src, 0, "broadcast", "src")), x)


def scatter(
    x: PyTree,
    scatter_list: list[PyTree] | None = None,
    src: int | None = None,
    group: ProcessGroup = None,
    *,
    group_src: int | None = None,
) -> PyTree:
    """Send piece r of rank `src`'s list to rank r, bit for bit.

    Args:
      x: a tree with the pieces' shapes and dtypes, on all ranks; its values are not used.
      scatter_list: on `src` one tree per rank of the group; None on the others.
      src, group, group_src: as in `broadcast`.

    Returns:
      This rank's piece. A rank outside the group gets `x` itself and a warning.

    Raises: as `broadcast`; GroupError if `src` passes no list or a different rank passes one.

    torch counterpart: `torch.distributed.scatter`, which writes into `x`.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(dist.scatter(jnp.zeros(2), [jnp.ones(2)], src=0))
    [1. 1.]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "scatter")) is None:
        return x
    root_rank = root(pg, src, group_src, 0, "scatter", "src")
    pieces = _pieces(pg, x, scatter_list, pg.rank == root_rank)
    piece = run(pg, "scatter", bodies.scatter, str(root_rank), pieces)
    return jax.tree.map(lambda y: y[0], piece)


def reduce_scatter(x: PyTree, op: str = "sum", group: ProcessGroup = None) -> PyTree:
    """Reduce every rank's `x` by `op`, and return piece r of the result on rank r.

    Args:
      x: a list of W trees, one per rank; or a tree of arrays [W*k, ...], whose rows r*k to (r+1)*k go to
        rank r.
      op, group: as in `all_reduce`.

    Returns:
      This rank's piece. A rank outside the group gets None and a warning.

    Raises: as `all_reduce`; LeafError if an array's rows are not divisible by W.

    torch counterpart: `torch.distributed.reduce_scatter` for a list, `reduce_scatter_tensor` for arrays.
    """
    if (pg := member(group, "reduce_scatter")) is None:
        return None
    if not isinstance(x, list):
        return _rows(pg, "reduce_scatter", x, op)
    op = _checked(op, "reduce_scatter")
    _check_length(pg, "reduce_scatter", x)
    piece = run(pg, "reduce_scatter", bodies.reduce_scatter, op, _stacked(x), _cannot)
    return jax.tree.map(lambda y: y.reshape(y.shape[1:]), piece)


def reduce_scatter_tensor(x: PyTree, op: str = "sum", group: ProcessGroup = None) -> PyTree:
    """Reduce every rank's array [W*k, ...] by `op`, and return rows r*k to (r+1)*k on rank r.

    Raises: as `reduce_scatter`.

    torch counterpart: `torch.distributed.reduce_scatter_tensor`.

    >>> import jax.numpy as jnp
    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> print(dist.reduce_scatter_tensor(jnp.array([1, 2])))
    [1 2]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "reduce_scatter_tensor")) is None:
        return None
    return _rows(pg, "reduce_scatter_tensor", x, op)


# -------------------------------------------------------------------------------------- pieces


def _gathered(group: Group, function: str, x: PyTree) -> list[PyTree]:
    gathered = run(group, function, bodies.gather, "", x)
    return [jax.tree.map(lambda _, of, r=rank: of[r], x, gathered) for rank in range(group.size)]


def _uneven(group: Group, x: PyTree) -> list[PyTree]:
    """Gather arrays of uneven shapes: pad to the largest, gather, and cut off the padding."""
    leaves, treedef = jax.tree.flatten(x)
    arrays = [local(leaf, name, "all_gather") for leaf, name in zip(leaves, paths(x, "x"), strict=True)]
    shapes_by_rank = exchange_json(
        "all_gather of uneven shapes", [y.shape for y in arrays], group.timeout, group
    )
    shapes = [list(map(tuple, rank_shapes)) for rank_shapes in shapes_by_rank.values()]
    # If numbers of arrays or axes differ, padding is impossible: `run` raises with both trees.
    same_structure = all([len(s) for s in rank_shapes] == [y.ndim for y in arrays] for rank_shapes in shapes)
    if same_structure:
        largest = [tuple(map(max, zip(*of_leaf, strict=True))) for of_leaf in zip(*shapes, strict=True)]
        padded = [_filled(y, shape) for y, shape in zip(arrays, largest, strict=True)]
    else:
        padded = arrays
    gathered = _gathered(group, "all_gather", jax.tree.unflatten(treedef, padded))
    return [
        jax.tree.unflatten(
            treedef, [_cut(y, shape) for y, shape in zip(jax.tree.leaves(one), of, strict=True)]
        )
        for one, of in zip(gathered, shapes, strict=True)
    ]


def _filled(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    padding = [(0, n - have) for have, n in zip(x.shape, shape, strict=True)]
    if not any(after for _, after in padding):
        return x
    if not is_key(x.dtype):
        return jnp.pad(x, padding)
    data = jnp.pad(jax.random.key_data(x), [*padding, (0, 0)])
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))


def _cut(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x[tuple(slice(0, n) for n in shape)]


def _pieces(group: Group, x: PyTree, scatter_list: list[PyTree] | None, is_src: bool) -> PyTree:
    """Return this rank's arrays [W, ...] for `scatter`, of which only `src`'s are sent."""
    # All ranks run one program, so the receivers pass arrays of the same shape, whose values are masked out.
    if not is_src:
        if scatter_list:
            raise GroupError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (group.size, *np.shape(leaf))), x)
    if not scatter_list:
        raise GroupError("Argument ``scatter_list`` must be specified on source rank.")
    _check_length(group, "scatter", scatter_list)
    return _stacked(scatter_list)


def _stacked(pieces: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(y) for y in leaves]), *pieces)


def _rows(group: Group, function: str, x: PyTree, op: str) -> PyTree:
    op = _checked(op, function)
    for leaf, name in zip(jax.tree.leaves(x), paths(x, "x"), strict=True):
        shape = np.shape(leaf)
        if not shape or shape[0] % group.size:
            raise LeafError(
                f"{function}: {name} has shape {shape}, whose rows cannot be shared out evenly to "
                f"{group.size} ranks; pass a list of {group.size} pieces of one shape to reduce_scatter, or "
                "fill it up."
            )
    return run(group, function, bodies.reduce_scatter, op, x, _cannot)


# ---------------------------------------------------------------------------------------- checks


def _check_length(group: Group, function: str, pieces: list[PyTree]) -> None:
    if len(pieces) != group.size:
        raise GroupError(f"{function}: a list of {len(pieces)} for {group.size} ranks; one piece for each.")


def _checked(op: str, function: str) -> str:
    ops = [reduce_op.value for reduce_op in bodies.ReduceOp]
    if op not in ops:
        raise GroupError(f"{function}: op={op!r} is unknown; write one of {', '.join(map(repr, ops))}.")
    return str(op)


def _cannot(dtype: np.dtype, op: str) -> str:
    if is_key(dtype):
        return "random keys are not numbers; all_gather and broadcast take them."
    if op == "mean" and not jnp.issubdtype(dtype, jnp.inexact):
        return "only floats and complex numbers have a mean; sum them and divide, or convert them."
    if op in ("max", "min") and jnp.issubdtype(dtype, jnp.complexfloating):
        return f"complex numbers have no {op}."
    if op in bodies.BITWISE and jnp.issubdtype(dtype, jnp.inexact):
        return f"only integers and booleans have bits, which {op} needs."
    return ""
