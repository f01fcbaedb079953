"""traced_step: the program of `train_step` for shapes, so that a compiler can report its costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._devices.context import outside_for
from .._parallel.data_parallel import DataParallel
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._tree import has_shape as has_shape
from .._tree import shape_of as shape_of
from .agreement import Alone, SameRows
from .compiled_step import compiled
from .engine import Engine, Work
from .engine_state import EngineState
from .training_arrays import TrainingArrays
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
    """Trace a step with `on_nonfinite="ignore"`; it returns a `StepResult`. No array is made.

    A DataParallel has the loss of the complete batch; a plain module has each replica's own, as in
    DistributedDataParallel. `batch` has the rows of all devices. `update=False` stops at the gradients, which
    are then the result's `replica_state.gradients`.
    """
    make_update = functools.partial(update_of, accumulate=1, on_nonfinite="ignore", precision=None)
    objective = Objective(loss_fn, has_aux, make_update=make_update if update else None)
    work: Work
    if isinstance(net, DataParallel):
        world, state = ALONE, EngineState(Alone())
        work = BatchWork(objective, placement, Programs(compiled))
    else:
        world, state = World(placement, placement, 0, 1), EngineState(SameRows(1, shares_buffers=True))
        work = ReplicaWork(objective, world, state, "shard_map", Programs(compiled))
    with outside_for(placement):
        arrays = TrainingArrays(net, net, optimizer, placement, world)
        return Engine(arrays, work, state, world, loss_fn).trace(batch, {}, keep=not update)
