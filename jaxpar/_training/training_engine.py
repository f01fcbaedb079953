"""training_engine: the engine of a training step, for networks that are wrapped in one of three ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from .._parallel.programs import Programs
from ..distributed.check_replicas import check_replicas
from . import networks
from .agreement import Alone
from .compiled_step import compiled
from .distributed_data_parallel import DistributedDataParallel
from .divergence_guard import Fingerprint, fingerprint
from .engine import Engine, Work
from .engine_state import EngineState
from .on_update import UpdateHook
from .training_arrays import TrainingArrays
from .work import BatchWork, Objective, ReplicaWork
from .world import ALONE


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
    arrays = TrainingArrays(net, networks.unwrapped(net), optimizer, placement, world, hook)
    if hook is not None:
        hook.refuse_shared(net, optimizer)
        if world.size > 1:
            check_replicas({"on_update": arrays.hook_values()}, world.group)
    objective.prepare(arrays)
    assert objective.update is not None
    arrays.reset(objective.update.start())
    compared: Fingerprint = ()
    # Once, because a fingerprint traces the update and waits for the optimizer's numbers. Numbers that change
    # later are compared by `OptimizerNumbers`.
    if world.size > 1:
        values, extra = arrays.take()
        names = [name.removeprefix("module.") for name in arrays.optimizer.view.names]
        compared = fingerprint(objective.update, values, extra["optimizer"], names)
    return Engine(arrays, work, state, world, loss_fn, compared, "train_step"), arrays
