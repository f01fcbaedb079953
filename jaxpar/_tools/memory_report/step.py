"""A training step as shapes: a module's state, a batch, and what is done with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ..._parallel.placement import Placement
from ..._parallel.scatter import chunk_sizes
from ..._tree import is_array
from ..._typing import PyTree
from ...errors import NoRowsError
from ..compiled import is_float, shapes

LossFn = Callable[[Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Step:
    """What both patterns do, each in its own way.

    Attributes:
      params, buffers, optimizer: state, as shapes.
      arrays: those of the batch; `arguments(arrays)` puts them where the module expects them.
    """

    graphdef: Any
    params: PyTree
    buffers: PyTree
    optimizer: PyTree
    arrays: list[jax.ShapeDtypeStruct]
    arguments: Callable[[list[Any]], tuple]
    loss: LossFn
    tx: optax.GradientTransformation | None
    placement: Placement

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each replica."""
        return chunk_sizes(self.arrays[0].shape[self.placement.dim], self.placement.N)

    def module(self, params: PyTree, buffers: PyTree) -> Any:
        return nnx.merge(self.graphdef, params, buffers, copy=True)

    def rows(self, b: int) -> list[jax.ShapeDtypeStruct]:
        """A replica's part of the batch."""
        return [_with_rows(x, self.placement.dim % x.ndim, b) for x in self.arrays]


def plan(
    module: nnx.Module,
    inputs: PyTree,
    loss_fn: LossFn | None,
    tx: optax.GradientTransformation | None,
    placement: Placement,
) -> Step:
    """Reads what the user passed.

    Raises:
      NoRowsError: no array among the inputs.
    """
    args = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    leaves, treedef = jax.tree.flatten(args)
    where = [i for i, x in enumerate(leaves) if is_array(x) or isinstance(x, jax.ShapeDtypeStruct)]
    if not where:
        raise NoRowsError(
            "memory_report: inputs hold no array whose rows could be shared out; pass a batch, or "
            "jax.ShapeDtypeStructs of its arrays."
        )

    def arguments(arrays: list[Any]) -> tuple:
        filled = dict(enumerate(leaves)) | dict(zip(where, arrays, strict=True))
        return jax.tree.unflatten(treedef, filled.values())

    graphdef, params, buffers = nnx.split(module, nnx.Param, ...)
    params, buffers, arrays = shapes((params, buffers, [leaves[i] for i in where]))
    state = jax.eval_shape(tx.init, params) if tx else ()
    loss = _checked(loss_fn or _mean_square)
    return Step(graphdef, params, buffers, state, arrays, arguments, loss, tx, placement)


def _checked(loss_fn: LossFn) -> LossFn:
    def loss(outputs: Any) -> jax.Array:
        found = loss_fn(outputs)
        if jnp.shape(found) != ():
            raise TypeError(
                f"memory_report: loss_fn must return a scalar and returned shape {jnp.shape(found)}; "
                "take its mean or its sum."
            )
        return found

    return loss


def _mean_square(outputs: Any) -> jax.Array:
    return sum((jnp.mean(jnp.square(x)) for x in jax.tree.leaves(outputs) if is_float(x)), jnp.zeros(()))


def _with_rows(x: jax.ShapeDtypeStruct, axis: int, b: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:axis], b, *x.shape[axis + 1 :]), x.dtype)
