"""gather: the replicas' outputs become one; inside `jax.jit` rows stay on the devices that made them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._arguments import warn
from .._devices.context import outside, returned
from .._tree import LazyPaths, check_alive, check_leaves, has_tracers, is_array, is_real, is_staged, paths
from .._typing import DeviceLike, PyTree, Shape, TreeDef
from .._upstream import concrete
from ..errors import DimError, GatherError, GatherTypeError
from . import placement as _placement
from .replicated import array_marks, is_marked, leaf_marks
from .shards import Shards, crop, separate


@outside
def gather(
    outputs: Shards | Sequence[PyTree], target_device: DeviceLike | None = None, dim: int = 0
) -> PyTree:
    """Concatenate the replicas' outputs along `dim`.

    >>> import jax.numpy as jnp, jaxpar
    >>> jaxpar.gather([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int...)

    Args:
      outputs: Shards, or a sequence with one tree for each replica.
      target_device: where the result goes; the first replica's device if left out. `"cpu"` is the
        host. Inside of `jax.jit` the result stays sharded over the devices instead.
      dim: the batch dimension; Shards bring their own.

    Returns:
      One tree with the structure of one output. Arrays [.., b, ..] become [.., B, ..]; outputs
      without axes become a vector with one entry for each replica, with torch's warning.

    Raises:
      GatherError: shapes, dtypes, dict keys or structures that do not fit together.
      GatherTypeError: outputs that are neither arrays nor None.
      DimError: outputs without axis `dim`. DeletedError: a donated array.
      LeafError, RangeError: a host array that no device can hold.

    torch counterpart: `torch.nn.parallel.gather` (docs/semantics.md section 1.5).
    """
    if not isinstance(outputs, Shards):
        if not isinstance(outputs, Sequence):
            raise TypeError(
                f"gather: outputs are {type(outputs).__name__}; give jaxpar.Shards, or a list with one "
                "output for each replica."
            )
        return returned(_gather_list(list(outputs), target_device, dim), dim)
    target = _placement.output(target_device, outputs.placement.devices[0])
    return with_mesh(assemble(outputs, None if is_staged() else target), outputs.placement.dim)


def assemble(shards: Shards, target: jax.Device | jax.sharding.Sharding | None, warns: bool = True) -> PyTree:
    """Join the pieces into one tree on `target`; None leaves them where they are.

    What is marked as replicated is replica 0's, and keeps its mark.
    """
    stacks, _, treedef = separate(shards.tree)
    check_alive(stacks, LazyPaths(("outputs", shards.tree)), "gather")
    placement, dim, marks = shards.placement, shards.placement.dim, tuple(array_marks(shards.tree))
    for shapes, name, mark in zip(shards.shapes, paths(shards.tree, "outputs"), marks, strict=True):
        if not mark:
            _check_shapes(shapes, dim, name)
    if warns and any(() in shapes for shapes, mark in zip(shards.shapes, marks, strict=True) if not mark):
        _warn_scalars()
    if target is not None:
        # A derivative sends stacks back to where they were: split along axis 0, which vmap may have added.
        stacks = jax.device_put(stacks, target, src=placement.replicated if has_tracers(stacks) else None)
    return jax.tree.unflatten(treedef, _join(stacks, shards.shapes, marks, dim))


def with_mesh(outputs: PyTree, dim: int) -> PyTree:
    """Return assembled outputs without marks, for use under the caller's mesh; `dim` is the axis of rows."""
    if not any(leaf_marks(outputs)):
        return returned(outputs, dim)

    def one(x: Any) -> Any:
        return returned(x.value) if is_marked(x) else returned(x, dim)

    return jax.tree.map(one, outputs, is_leaf=is_marked)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _join(
    stacks: list[jax.Array], shapes: tuple[tuple[Shape, ...], ...], marks: tuple[bool, ...], dim: int
) -> list[jax.Array]:
    return [
        crop(x[0], s[0]) if mark else _join_one(x, s, dim)
        for x, s, mark in zip(stacks, shapes, marks, strict=True)
    ]


def _join_one(stack: jax.Array, shapes: tuple[Shape, ...], dim: int) -> jax.Array:
    if shapes[0] == ():
        return stack[: len(shapes)]
    axis = dim % len(shapes[0])
    if any(shape != stack.shape[1:] for shape in shapes[:-1]):
        return jnp.concatenate([crop(stack[i], shape) for i, shape in enumerate(shapes)], axis)
    # All pieces but the last are full, so one slice at the end removes all padding, and XLA can do
    # it without moving a row.
    rows = jnp.moveaxis(stack, 0, axis)
    rows = rows.reshape(*rows.shape[:axis], -1, *rows.shape[axis + 2 :])
    return jax.lax.slice_in_dim(rows, 0, sum(shape[axis] for shape in shapes), axis=axis)


def _check_shapes(shapes: Sequence[Shape], dim: int, name: str) -> None:
    first = shapes[0]
    for i, shape in enumerate(shapes):
        if len(shape) != len(first):
            raise GatherError(
                f"gather: {name}: Expected all input tensors to have the same number of dimensions, "
                f"but tensor at index {i} has {len(shape)} dimensions (expected {len(first)})."
            )
    if first == ():
        if dim != 0:
            raise DimError(
                f"gather: {name} has no axes, so dim={dim} is out of range; only dim=0 makes a vector of "
                "scalars."
            )
        return
    if not -len(first) <= dim < len(first):
        raise DimError(
            f"gather: Dimension out of range (expected to be in range of [{-len(first)}, {len(first) - 1}], "
            f"but got {dim}): {name} has shape {first} on replica 0."
        )
    axis = dim % len(first)
    for i, shape in enumerate(shapes):
        expected = (*first[:axis], shape[axis], *first[axis + 1 :])
        if shape != expected:
            raise GatherError(
                f"gather: {name}: Input tensor at index {i} has invalid shape {list(shape)}, but expected "
                f"{list(expected)}. Replicas may differ along dim={dim} only; pad to a common length in "
                "forward."
            )


def _warn_scalars() -> None:
    warn(
        "Was asked to gather along dimension 0, but all input tensors were scalars; will instead "
        "unsqueeze and return a vector."
    )


def _gather_list(outputs: list[PyTree], target_device: DeviceLike | None, dim: int) -> PyTree:
    if not outputs:
        raise GatherError("gather: there are no outputs; give at least one replica's.")
    first, form = jax.tree.flatten(outputs[0])
    for i, other in enumerate(outputs):
        _check_form(outputs[0], other, i)
    names = paths(outputs[0], "outputs")
    leaves, named = jax.tree.leaves(outputs), LazyPaths(("outputs", outputs))
    check_alive(leaves, named, "gather")
    check_leaves(leaves, named, "gather")
    columns = list(zip(*map(jax.tree.leaves, outputs), strict=True))
    for pieces, name in zip(columns, names, strict=True):
        _check_pieces(pieces, dim, name)
    if any(x.ndim == 0 for x in first):
        _warn_scalars()
    joined = []
    for pieces in columns:
        if not is_staged():
            underlying = concrete(pieces[0])
            default = next(iter(underlying.devices())) if is_real(underlying) else jax.local_devices()[0]
            pieces = jax.device_put(list(pieces), _placement.output(target_device, default))
        joined.append(jnp.stack(pieces) if pieces[0].ndim == 0 else jnp.concatenate(pieces, dim))
    return jax.tree.unflatten(form, joined)


def _check_form(first: PyTree, other: PyTree, i: int) -> None:
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() != other.keys():
        what = "number of keys" if len(first) != len(other) else "keys"
        raise GatherError(
            f"gather: All dicts must have the same {what}: replica 0 has {sorted(map(str, first))} and "
            f"replica {i} has {sorted(map(str, other))}."
        )
    one: TreeDef = jax.tree.structure(first)
    two: TreeDef = jax.tree.structure(other)
    if one != two:
        raise GatherError(
            f"gather: replica 0 returned {one} and replica {i} returned {two}; all replicas must return the "
            "same structure."
        )


def _check_pieces(pieces: Sequence[Any], dim: int, name: str) -> None:
    for i, x in enumerate(pieces):
        if not is_array(x):
            raise GatherTypeError(
                f"gather: {name} of replica {i} is of type {type(x).__name__} ({x!r:.40}), which cannot be "
                "gathered. Return arrays, None, or containers of these."
            )
        if x.dtype != pieces[0].dtype:
            raise GatherError(
                f"gather: {name} is {pieces[0].dtype} on replica 0 and {x.dtype} on replica {i}; torch would "
                "cast silently to the first. Return one dtype."
            )
    _check_shapes([x.shape for x in pieces], dim, name)
