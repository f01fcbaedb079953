"""local_batch: a process's own batch, checked, becomes its part of the batch of all replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import warn
from .._parallel.branch import Kind
from .._parallel.placement import Placement
from .._parallel.replicated import leaf_marks
from .._parallel.scatter import cut
from .._parallel.shards import Shards, combine, separate
from .._tree import LazyPaths, check_alive, check_leaves, has_shape, is_array
from .._typing import Shape, Static, TreeDef
from ..errors import BatchError
from .world import World


@dataclasses.dataclass(frozen=True)
class LocalRows:
    """One process's rows, on its K devices."""

    batch: tuple[tuple, dict]  # args and kwargs, with arrays [K, *piece]
    sizes: tuple[int, ...]  # of the replicas with rows
    kinds: tuple[Kind | None, ...]  # the shapes of each of the K replicas' pieces, None for one without rows

    def describe(self) -> dict[str, str]:
        arrays, statics, form = separate(self.batch)
        return {
            "the batch's structure": str(form),
            "the batch's dtypes": " ".join(str(x.dtype) for x in arrays),
            "the batch's other arguments": " ".join(repr(s) for s in statics if s is not None),
            "the batch's shapes": str(self.kinds),
        }

    def widened(self, kinds: Sequence[Kind | None], placement: Placement) -> LocalRows:
        """Return the same rows with arrays padded to the largest pieces of all `kinds`."""
        arrays, statics, form = separate(self.batch)
        used = [kind for kind in kinds if kind is not None]
        largest = [tuple(map(max, zip(*shapes, strict=True))) for shapes in zip(*used, strict=True)]
        wide = [_widen(x, shape, placement) for x, shape in zip(arrays, largest, strict=True)]
        return dataclasses.replace(self, batch=combine(wide, statics, form))

    @property
    def numbers(self) -> list[Any]:
        """The numbers and texts among the arguments, for ranks without rows; None for an object."""
        values = [s.value for s in separate(self.batch)[1] if s is not None]
        return [value if type(value) in (bool, int, float, str) else None for value in values]

    def with_numbers(self, numbers: Sequence[Any]) -> LocalRows:
        """Return the same rows with another process's `numbers`."""
        arrays, statics, form = separate(self.batch)
        others = iter(numbers)
        both = [(s, None if s is None else next(others, None)) for s in statics]
        replaced = [s if value is None else Static(value) for s, value in both]
        return dataclasses.replace(self, batch=combine(arrays, replaced, form))

    def empty(self) -> LocalRows:
        return LocalRows(self.batch, (), (None,) * len(self.kinds))


def take(args: tuple, kwargs: dict[str, Any], world: World) -> LocalRows:
    """Cut a batch over the devices of this process. Raises as `scatter`."""
    shards = cut((args, kwargs), world.local, LazyPaths(("batch", args), ("batch", kwargs)))
    used: list[Kind | None] = [tuple(shapes[i] for shapes in shards.shapes) for i in range(len(shards))]
    return LocalRows(shards.tree, shards.sizes, tuple(used + [None] * (world.local.N - len(shards))))


def outputs(aux: Shards, active: Sequence[int], rows: LocalRows, world: World) -> Shards:
    local_active = [j for j, i in enumerate(active) if world.first <= i < world.first + world.local.N]
    shapes = tuple(tuple(of_leaf[j] for j in local_active) for of_leaf in aux.shapes)
    return Shards(world.local_stacked(aux.tree), rows.sizes, shapes, world.local)


def _widen(x: jax.Array, shape: Shape, placement: Placement) -> jax.Array:
    # At least 1: XLA's partitioner fails on arrays without elements at a shard_map's border.
    want = (x.shape[0], *(max(1, n) for n in shape))
    if x.shape == want:
        return x
    # Only for a rank without rows: it brings the arrays of its last step, which may be larger.
    if any(have > n for have, n in zip(x.shape, want, strict=True)):
        x = jax.jit(jnp.zeros_like, out_shardings=placement.stacked)(x[tuple(slice(0, n) for n in want)])
    padding = [(0, n - have) for have, n in zip(x.shape, want, strict=True)]
    return jax.jit(lambda x: jnp.pad(x, padding), out_shardings=placement.stacked)(x)


MANY = 3  # an epoch has two shapes: full batches and a shorter last one


class Batches:
    def __init__(self) -> None:
        self._form: TreeDef | None = None
        self._shapes: set[Any] = set()

    def check(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return structure and shapes, for `remember` after the step."""
        leaves, form = jax.tree.flatten((args, kwargs))
        if self._form is not None and form != self._form:
            raise BatchError(
                f"train_step: the batch's structure changed: {self._form} at the first step, {form} now. "
                "Give every batch the same containers, keys and Nones."
            )
        check_batch(args, kwargs, leaves, "train_step")
        shapes = tuple((x.shape, x.dtype) if is_array(x) else None for x in leaves)
        # An empty array shows in its shape, so shapes that have passed are not searched again.
        if shapes not in self._shapes:
            check_rows(args, kwargs, "train_step")
            if len(self._shapes) == MANY - 1:
                warn(
                    f"train_step: this is the third shape of batches, {[s[0] for s in shapes if s]}, and "
                    "every one is compiled by itself. Drop or pad uneven batches."
                )
        return form, shapes

    def remember(self, form: TreeDef, shapes: tuple) -> None:
        self._form = form
        self._shapes.add(shapes)


def without_torch(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Return the same arguments with torch's CPU tensors as arrays, which share their memory."""
    if not any(map(_of_torch, jax.tree.leaves((args, kwargs)))):
        return args, kwargs
    return jax.tree.map(lambda leaf: np.asarray(leaf) if _of_torch(leaf) else leaf, (args, kwargs))


def _of_torch(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] == "torch" and hasattr(leaf, "__array__")


def check_batch(args: tuple, kwargs: dict[str, Any], leaves: list, function: str) -> None:
    """Raise LeafError, RangeError, DeletedError; reads only host arrays that JAX would narrow."""
    names = LazyPaths(("batch", args), ("batch", kwargs))
    check_leaves(leaves, names, function)
    check_alive(leaves, names, function)


def empty(args: tuple, kwargs: dict[str, Any]) -> str | None:
    """Return the first array of rows that has no elements, as `path has shape`, or None."""
    marks = leaf_marks((args, kwargs))
    for i, leaf in enumerate(jax.tree.leaves((args, kwargs))):
        if has_shape(leaf) and leaf.size == 0 and not marks[i]:
            names = LazyPaths(("batch", args), ("batch", kwargs))
            return f"{names[i]} has shape {tuple(leaf.shape)}"
    return None


def check_rows(args: tuple, kwargs: dict[str, Any], function: str) -> None:
    """Raise BatchError: a mean of no losses is not a number, and the gradients would be zero."""
    empty_array = empty(args, kwargs)
    if empty_array is not None:
        raise BatchError(
            f"{function}: {empty_array}: the batch is empty. Leave it out; processes that have fewer batches "
            "than others train inside of join()."
        )
