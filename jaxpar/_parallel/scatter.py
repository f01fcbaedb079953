"""scatter: a batch goes out to the devices, in the pieces of `torch.chunk` (docs/semantics.md rows 15, 19).

On purpose, siblings with different numbers of rows raise (row 24), numpy arrays are arrays, and arguments and
keyword arguments are split as one batch (row 27).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._devices.context import brought, outside, use_mesh
from .._devices.topology import refuse_topology
from .._tree import LazyPaths, check_alive, check_leaves, is_array, is_real, is_staged
from .._typing import Array, DeviceLike, PyTree, Shape
from ..errors import DeviceError, DimError, LeafError, NoRowsError, RowsError
from .placement import Placement, over_devices, place
from .replicated import array_marks, is_lone_key, with_marks
from .shards import Shards, combine, separate


@outside
def scatter(inputs: PyTree, target_gpus: Iterable[DeviceLike] | Placement, dim: int = 0) -> Shards:
    """Split the arrays of a tree along `dim` and send piece i to device i.

    >>> import jax.numpy as jnp, jaxpar
    >>> placement = jaxpar.Placement(tuple(jaxpar.devices()[:1]))
    >>> jaxpar.scatter({"x": jnp.ones((4, 3)), "name": "train"}, placement)[0]["x"].shape
    (4, 3)

    Args:
      inputs: any pytree. Arrays [..., B, ...] are split. What `replicated` marks and leaves that are not
        arrays go to every replica as they are, a key without axes with the replica's number folded in.
        Without rows there is one piece for each device; a tree without leaves has one.
      target_gpus: devices (ids, texts, `jax.Device`s) or a `Placement`.
      dim: the axis that holds the B rows, of every array; a `Placement` brings its own.

    Returns:
      Shards with k <= N pieces of the sizes that `torch.chunk(batch, N)` gives.

    Raises:
      RowsError: two arrays have different numbers of rows.
      NoRowsError: an array without axes. DimError: an array without axis `dim`.
      LeafError: text or object arrays, another library's tensors. DeletedError: a donated array.

    torch counterpart: `torch.nn.parallel.scatter` (docs/semantics.md section 1.2).
    """
    placement = place(target_gpus, None, dim, function="scatter")
    return cut(inputs, placement, LazyPaths(("inputs", inputs)))


@outside
def scatter_kwargs(
    inputs: PyTree, kwargs: dict[str, Any] | None, target_gpus: Iterable[DeviceLike] | Placement, dim: int = 0
) -> tuple[Shards, Shards]:
    """`scatter` for arguments and keyword arguments, split as one batch.

    >>> import jax.numpy as jnp
    >>> import jaxpar
    >>> placement = jaxpar.Placement(tuple(jaxpar.devices()[:1]))
    >>> inputs, kwargs = scatter_kwargs((jnp.ones(4),), {"y": jnp.zeros(4)}, placement)
    >>> inputs.sizes, kwargs.sizes
    ((4,), (4,))

    torch counterpart: `torch.nn.parallel.scatter_gather.scatter_kwargs`; as there, arguments that
    are not a tuple are split as they are.
    """
    return cut_arguments(inputs, kwargs or {}, place(target_gpus, None, dim, function="scatter_kwargs"))


def cut_arguments(inputs: PyTree, kwargs: dict[str, Any], placement: Placement) -> tuple[Shards, Shards]:
    both = cut((inputs, kwargs), placement, LazyPaths(("inputs", inputs), ("kwargs", kwargs)))
    n = sum(is_array(leaf) for leaf in jax.tree.leaves(inputs))
    return (
        Shards(both.tree[0], both.sizes, both.shapes[:n], placement),
        Shards(both.tree[1], both.sizes, both.shapes[n:], placement),
    )


def chunk_sizes(B: int, N: int) -> tuple[int, ...]:
    """torch.chunk's sizes: c, ..., c and the rest, for as many of N as get rows; N zeros for B = 0.

    >>> chunk_sizes(10, 4), chunk_sizes(9, 4), chunk_sizes(17, 8)
    ((3, 3, 3, 1), (3, 3, 3), (3, 3, 3, 3, 3, 2))
    """
    if B == 0:
        return (0,) * N
    c = -(-B // N)
    k = -(-B // c)
    return (c,) * (k - 1) + (B - (k - 1) * c,)


def cut(tree: PyTree, placement: Placement, names: LazyPaths) -> Shards:
    """Scatter a tree to a placement; `names` are the leaves' paths, for errors."""
    if not placement.N:
        raise DeviceError(
            "scatter: there is one CPU device and no accelerator, so nothing to scatter to; "
            "see jaxpar.virtual_devices."
        )
    tree = with_marks(tree)
    use_mesh(placement.outer_mesh)
    leaves = jax.tree.leaves(tree)
    check_leaves(leaves, names, "scatter")
    check_alive(leaves, names, "scatter")
    if not is_staged():
        refuse_topology(placement.devices, "scatter")
    arrays, statics, treedef = separate(tree)
    if not arrays:
        # docs/semantics.md rows 28, 29: only non-tensors, one replica for each device; nothing, one.
        return Shards(tree, (0,) * (placement.N if leaves else 1), (), placement)
    for i, x in enumerate(arrays):
        if is_real(x) and not x.is_fully_addressable:
            raise LeafError(
                f"scatter: {names.of_array(i)} is on devices of several processes, and every process brings "
                "its own rows: pass those that this one has, as a NumPy array or on its own devices."
            )
    # None for what every replica gets all of.
    axes = [
        None if mark or is_lone_key(x) else _axis(x, i, placement.dim, names)
        for i, (x, mark) in enumerate(zip(arrays, array_marks(tree), strict=True))
    ]
    rows = _rows(arrays, axes, names)
    sizes = (0,) * placement.N if rows is None else chunk_sizes(rows, placement.N)
    stacks = _spread(arrays, axes, sizes, placement)
    shapes = tuple(_shapes(x.shape, a, sizes) for x, a in zip(arrays, axes, strict=True))
    return Shards(combine(stacks, statics, treedef), sizes, shapes, placement)


def _axis(x: Array, i: int, dim: int, names: LazyPaths) -> int:
    if -x.ndim <= dim < x.ndim:
        return dim % x.ndim
    name = names.of_array(i)
    if x.ndim == 0:
        raise NoRowsError(
            f"scatter: {name} has no axes (chunk expects at least a 1-dimensional tensor); pass "
            "jaxpar.replicated(...), of which every replica gets all, a Python number, or one value per row."
        )
    raise DimError(
        f"scatter: Dimension out of range (expected to be in range of [{-x.ndim}, {x.ndim - 1}], "
        f"but got {dim}): {name} has shape {tuple(x.shape)} and dim={dim} is the batch dimension."
    )


def _rows(arrays: Sequence[Array], axes: Sequence[int | None], names: LazyPaths) -> int | None:
    counts = [(i, x.shape[a]) for i, (x, a) in enumerate(zip(arrays, axes, strict=True)) if a is not None]
    for i, count in counts:
        first, rows = counts[0]
        if count != rows:
            raise RowsError(
                f"scatter: {names.of_array(first)} has {rows} rows and {names.of_array(i)} has {count}. All "
                "arrays of one batch must have as many rows along dim; torch would silently drop the rows "
                "without a partner. Cut the batch, or mark what is no batch: jaxpar.replicated(...)."
                + _raw_key(arrays[first], arrays[i])
            )
    return counts[0][1] if counts else None


def _raw_key(*arrays: Array) -> str:
    if not any(x.shape == (2,) and x.dtype == np.uint32 for x in arrays):
        return ""
    return (
        " Nothing tells a raw key of jax.random.PRNGKey from data; jax.random.wrap_key_data(key) and "
        "jax.random.key(seed) are keys."
    )


def _shapes(shape: Shape, axis: int | None, sizes: Sequence[int]) -> tuple[Shape, ...]:
    if axis is None:
        return (shape,) * len(sizes)
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes)


def _spread(
    arrays: list[Array], axes: list[int | None], sizes: Sequence[int], placement: Placement
) -> list[jax.Array]:
    c = max(sizes[0], 1)  # XLA's partitioner fails on arrays without elements at a shard_map's border
    arrays = [_brought(x, a, placement) for x, a in zip(arrays, axes, strict=True)]
    if is_staged():
        stacks = [_stack(x, a, c, placement.N) for x, a in zip(arrays, axes, strict=True)]
        return stacks if placement.N == 1 else jax.lax.with_sharding_constraint(stacks, placement.stacked)
    return [_send(x, a, c, placement) for x, a in zip(arrays, axes, strict=True)]


def _brought(x: Array, axis: int | None, placement: Placement) -> Array:
    if isinstance(x, np.ndarray):
        return x
    return brought(
        x, placement.mesh, lambda: placement.replicated if axis is None else over_devices(x, placement), axis
    )


def _stack(x: Array, axis: int | None, c: int, N: int) -> jax.Array:
    """Reshape [..., B, ...] to [N, ..., c, ...]. Padding is appended, so XLA moves no rows."""
    if axis is None:
        return _copies(x, N)
    rows_to_add = N * c - x.shape[axis]
    if rows_to_add:
        x = _lengthen(x, axis, rows_to_add)
    x = x.reshape(*x.shape[:axis], N, c, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _copies(x: Array, N: int, where: jax.sharding.Sharding | None = None) -> jax.Array:
    if 0 in x.shape:  # see `c` in `_spread`
        x = jnp.zeros([max(1, n) for n in x.shape], x.dtype)
    copies = jnp.broadcast_to(x, (N, *x.shape))
    return copies if where is None else jax.lax.with_sharding_constraint(copies, where)


_copies_jit = jax.jit(_copies, static_argnums=(1, 2))


def _lengthen(x: Array, axis: int, rows_to_add: int) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # random keys have no zero; any key will do
        first = jax.lax.slice_in_dim(x, 0, 1, axis=axis)
        return jnp.concatenate([x, jnp.repeat(first, rows_to_add, axis)], axis)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, rows_to_add)
    return jnp.pad(x, padding)


_stack_jit = jax.jit(_stack, static_argnums=(1, 2, 3))


def _send(x: Array, axis: int | None, c: int, placement: Placement) -> jax.Array:
    """`_stack` and transfer; pieces of a host array go straight to their devices."""
    N = placement.N
    if isinstance(x, jax.core.Tracer):
        # Traced inputs are replicated, not split: vmap may add an axis in front of N.
        return jax.device_put(_stack_jit(x, axis, c, N), placement.replicated)
    if axis is None:
        if isinstance(x, np.ndarray):
            x = np.array(x, jax.dtypes.canonicalize_dtype(x.dtype))  # a copy, which the caller cannot change
        return _copies_jit(jax.device_put(x, placement.replicated), N, placement.stacked)
    if not isinstance(x, np.ndarray):
        return jax.device_put(_stack_jit(x, axis, c, N), placement.stacked)
    x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    rows_to_add = N * c - x.shape[axis]
    if rows_to_add:
        x = np.concatenate([x, np.zeros((*before, rows_to_add, *after), x.dtype)], axis)
    stack = x.reshape(*before, N, c, *after)
    if axis:
        stack = np.moveaxis(stack, axis, 0)
    # A CPU device uses the host's memory as it is if that is aligned, and the caller may write to it again.
    shared = placement.devices[0].platform == "cpu" and not rows_to_add

    def piece(index: Any) -> np.ndarray:
        return stack[index].copy() if shared else stack[index]

    # Half the price of device_put with the same sharding.
    return jax.make_array_from_callback(stack.shape, placement.stacked, piece)
