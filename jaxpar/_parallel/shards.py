"""Shards: a batch (or an output) in pieces, one for each replica, as one sharded tree.

Entry i of an array's leading axis is replica i's piece, padded to the largest. The padding never leaves this
file and `program`: code that reads a piece crops it to its true shape first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import jax

from .._devices.context import outside
from .._tree import combine as combine
from .._tree import is_array
from .._tree import separate as separate
from .._typing import PyTree, Shape
from .placement import Placement
from .replicated import of_replica


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class Shards(Sequence):
    """A tree cut into pieces for the k replicas that got some.

    >>> import jax.numpy as jnp, jaxpar
    >>> shards = jaxpar.scatter(jnp.arange(4.0), jaxpar.Placement(tuple(jaxpar.devices()[:1])))
    >>> len(shards), shards.sizes, shards[0].shape
    (1, (4,), (4,))

    `len(shards)` is k, `shards[i]` replica i's own tree on its own device, `shards[:2]` a list of such trees.
    A Shards is a pytree; the sizes are static.

    Attributes:
      tree: every array leaf has shape [N, *piece]; other leaves are the caller's own objects, and marks of
        `replicated` its own nodes.
      sizes: rows of each of the k replicas; they sum to B.
      shapes: for every array leaf, the true shape of each of the k pieces.
      placement: the N devices and the batch dimension.

    torch counterpart: the list that `scatter` and `parallel_apply` return (docs/semantics.md row 20).
    """

    tree: PyTree
    sizes: tuple[int, ...]
    shapes: tuple[tuple[Shape, ...], ...]
    placement: Placement

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, i: int) -> PyTree: ...
    @overload
    def __getitem__(self, i: slice) -> list[PyTree]: ...
    @outside
    def __getitem__(self, i: int | slice) -> PyTree:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"Shards: replica {i} of {len(self)}")
        i %= len(self)
        shapes = iter(self.shapes)
        pieces = jax.tree.map(lambda x: _piece(x, i, next(shapes)[i]) if is_array(x) else x, self.tree)
        return of_replica(pieces, i if len(self) > 1 else None)

    def tree_flatten(self) -> tuple[list[jax.Array], Any]:
        arrays, statics, treedef = separate(self.tree)
        return arrays, (treedef, statics, self.sizes, self.shapes, self.placement)

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Sequence[Any]) -> Shards:
        treedef, statics, sizes, shapes, placement = aux
        return cls(combine(arrays, statics, treedef), sizes, shapes, placement)


def crop(piece: Any, shape: Shape) -> Any:
    """Return the piece without its padding."""
    return piece if piece.shape == shape else piece[tuple(slice(0, s) for s in shape)]


def _piece(stack: Any, i: int, shape: Shape) -> jax.Array:
    return crop(stack[i] if isinstance(stack, jax.core.Tracer) else entry_of(stack, i), shape)


def entry_of(stack: jax.Array, i: int) -> jax.Array:
    # stack[i] would gather the whole array on every device and cost a thousand times as much.
    shard = next(s for s in stack.addressable_shards if (s.index[0].start or 0) == i)
    if shard.data.shape[1:] != stack.shape[1:]:  # split over other axes of a user's mesh as well
        return stack[i]
    return shard.data[0]
