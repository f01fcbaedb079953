"""training_engine: the engine of a training step, for networks that are wrapped in one of three ways."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from .._devices.context import outside_for
from .._parallel.data_parallel import DataParallel
from .._parallel.modules.bundle import nets_of
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._tree import has_shape as has_shape
from .._tree import shape_of as shape_of
from ..distributed.check_replicas import check_replicas
from . import networks
from .agreement import Alone, SameRows
from .compiled_step import compiled
from .distributed_data_parallel import DistributedDataParallel
from .divergence_guard import Fingerprint, fingerprint
from .division import DividedArrays, only_by_steps, whole_again, whole_shape
from .engine import Engine, Work
from .engine_state import EngineState
from .on_update import UpdateHook
from .training_arrays import TrainingArrays
from .update import update_of
from .work import BatchWork, Objective, ReplicaWork
from .world import ALONE, World


def training_engine(
    nets: Sequence[nnx.Module],
    net: Any,
    optimizer: Any,
    objective: Objective,
    loss_fn: Callable[..., Any],
    hook: UpdateHook | None,
) -> tuple[Engine, TrainingArrays]:
    programs = Programs(compiled)
    work: Work
    placement = networks.local_placement(nets[0])
    if isinstance(nets[0], DistributedDataParallel):
        world, state = nets[0].world, networks.state_of(nets)
        work = ReplicaWork(objective, world, state, nets[0].backend, programs)
    else:
        world, state = ALONE, EngineState(Alone())
        work = BatchWork(objective, placement, programs)
    divides = state.divides_optimizer
    arrays = TrainingArrays(net, networks.unwrapped(net), optimizer, placement, world, hook, divides)
    for its in nets_of(optimizer):
        whole_again(its)
        if divides:
            only_by_steps(its)
    if hook is not None:
        hook.refuse_shared(net, optimizer)
        if world.size > 1:
            check_replicas({"on_update": arrays.hook_values()}, world.group)
    try:
        objective.prepare(arrays)
    except Exception:
        for its in nets_of(optimizer):
            whole_again(its)
        raise
    assert objective.update is not None
    if isinstance(arrays.optimizer, DividedArrays):
        arrays.optimizer.divide(objective.update.divided)
    arrays.reset(objective.update.start())
    compared: Fingerprint = ()
    # Once, because a fingerprint traces the update and waits for the optimizer's numbers. Numbers that change
    # later are compared by `OptimizerNumbers`.
    if world.size > 1:
        values, extra = arrays.take()
        names = [name.removeprefix("module.") for name in arrays.optimizer.view.names]
        optimizer_values = (
            list(map(whole_shape, arrays.optimizer.view.leaves)) if divides else extra["optimizer"]
        )
        compared = fingerprint(objective.update, values, optimizer_values, names)
    return Engine(arrays, work, state, world, loss_fn, compared, "train_step"), arrays


def trace_step(
    net: nnx.Module,
    optimizer: nnx.Optimizer,
    loss_fn: Callable[..., Any],
    batch: tuple,
    placement: Placement,
    *,
    has_aux: bool = False,
    update: bool = True,
    divides: bool = False,
) -> jax.stages.Traced:
    """Trace a step with `on_nonfinite="ignore"`; it returns a `StepResult`. No array is made.

    A DataParallel has the loss of the complete batch; a plain module has each replica's own, as in
    DistributedDataParallel. `batch` has the rows of all devices. `update=False` stops at the gradients, which
    are then the result's `replica_state.gradients`. `divides`: the replicas of a plain module divide the
    optimizer's arrays, as with `shard_optimizer=True`; afterwards the optimizer holds shapes of stacks.
    """
    make_update = functools.partial(update_of, accumulate=1, on_nonfinite="ignore", precision=None)
    objective = Objective(loss_fn, has_aux, make_update=make_update if update else None)
    work: Work
    if isinstance(net, DataParallel):
        world, state = ALONE, EngineState(Alone())
        work = BatchWork(objective, placement, Programs(compiled))
    else:
        world = World(placement, placement, 0, 1)
        state = EngineState(SameRows(1, shares_buffers=True), divides_optimizer=divides)
        work = ReplicaWork(objective, world, state, "shard_map", Programs(compiled))
    with outside_for(placement):
        arrays = TrainingArrays(net, net, optimizer, placement, world, divides=state.divides_optimizer)
        objective.prepare(arrays)
        if isinstance(arrays.optimizer, DividedArrays) and objective.update is not None:
            arrays.optimizer.divide_shapes(objective.update.divided)
        return Engine(arrays, work, state, world, loss_fn).trace(batch, {}, keep=not update)
