"""traced_step: the program of `train_step` for shapes, so that a compiler can say what it needs.

Module and optimizer may come from `nnx.eval_shape`: nothing runs, nothing is sent, and no array is made.
JAX's counterpart is `jax.jit(f).trace`; torch runs a step to know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .._parallel.data_parallel import DataParallel
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._tree import is_array
from .._typing import REPLICA
from .agreement import Alone, SameRows
from .arrays import TrainingArrays
from .compiled_step import Own, Result, compiled
from .engine import Work
from .engine_state import EngineState
from .update import update_of
from .work import BatchWork, Objective, ReplicaWork
from .world import ALONE, World


def trace_step(
    net: nnx.Module,
    optimizer: nnx.Optimizer,
    loss_fn: Callable[..., Any],
    batch: tuple,
    placement: Placement,
    *,
    has_aux: bool = False,
    update: bool = True,
) -> jax.stages.Traced:
    """A step with `on_nonfinite="ignore"`, traced; it returns a `Result`.

    Args:
      net, optimizer, loss_fn, has_aux: as for `train_step`. A DataParallel has the loss of the whole batch;
        a plain module has each replica's own, as under DistributedDataParallel.
      batch: the rows of all devices. Arrays may be shapes; anything else is passed as it is.
      placement: the devices, on all of which net and optimizer lie.
      update: False stops at the gradients, which are then the result's `own.gradients`. An update donates its
        state, as the step does on an accelerator.
    """
    make_update = functools.partial(update_of, net, optimizer, 1, "ignore", None)
    objective = Objective(loss_fn, has_aux, make_update=make_update if update else None)
    work: Work
    if isinstance(net, DataParallel):
        world, state = ALONE, EngineState(Alone())
        work = BatchWork(objective, None, Programs(compiled))
    else:
        world, state = World(placement, placement, 0, 1), EngineState(SameRows(1, shares_buffers=True))
        work = ReplicaWork(objective, world, state, "shard_map", Programs(compiled))
    arrays = TrainingArrays(net, net, optimizer, None, world)
    leaves, form = jax.tree.flatten(batch)
    where = [i for i, leaf in enumerate(leaves) if has_shape(leaf)]

    def step(values: list, extra: dict[str, Any], given: list) -> Result:
        filled = dict(enumerate(leaves)) | dict(zip(where, given, strict=True))
        rows = work.bring(jax.tree.unflatten(form, filled.values()), {})
        found = state.strategy.agree(rows, None, not update)
        assert found is not None  # only join runs out of rows
        program, rows = work.program(arrays, found[1], found[0], not update)
        return program(values, extra, Own(), rows)

    held = arrays.view.held(), {"optimizer": arrays.optimizer.view.held()}
    values, extra = jax.tree.map(lambda x: shape_of(x, placement.replicated), held)
    given = [shape_of(leaves[i], over_devices(leaves[i], placement)) for i in where]
    return jax.jit(step, donate_argnums=(0, 1) if update else ()).trace(values, extra, given)


def has_shape(leaf: object) -> bool:
    """Whether it is an array, or the shape of one."""
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def shape_of(x: Any, sharding: Sharding | None = None) -> jax.ShapeDtypeStruct:
    """An array as a shape, of the type that JAX would give it."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)


def over_devices(x: Any, placement: Placement) -> NamedSharding:
    """Where a batch that is made inside of jit, or sent there, lies: cut if it can be cut evenly."""
    dim = placement.dim
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % placement.N:
        return placement.replicated
    return NamedSharding(placement.mesh, PartitionSpec(*[None] * (dim % x.ndim), REPLICA))
