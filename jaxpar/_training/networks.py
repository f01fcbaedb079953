"""networks: one or several networks, all wrapped the same way, and the objects among a step's arguments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from flax import nnx

from .._parallel.data_parallel import DataParallel
from .._parallel.modules.bundle import Bundle, nets_of
from .._parallel.placement import Placement
from .distributed_data_parallel import DistributedDataParallel
from .engine_state import EngineState
from .function_net import from_function, is_function
from .linen_net import from_linen, is_linen
from .training_arrays import refuse_other_metrics
from .work import placement_of


def as_one(nets: Any) -> Any:
    return Bundle(nets) if isinstance(nets, (tuple, list)) else nets


def as_nnx(net: Any, optimizer: Any) -> tuple[Any, Any]:
    """Return functions, Linen modules and their states as NNX modules and optimizers; NNX objects stay."""
    if is_function(net):
        return from_function(net, optimizer)
    if isinstance(net, tuple) and isinstance(optimizer, tuple) and len(net) == len(optimizer):
        pairs = [as_nnx(*pair) for pair in zip(net, optimizer, strict=True)]
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return from_linen(net, optimizer) if is_linen(net) else (net, optimizer)


def check_nets(net: Any, optimizer: Any) -> None:
    several = type(net) in (tuple, list)
    # An optax transformation is a tuple, too.
    nets, optimizers = (x if type(x) in (tuple, list) else [x] for x in (net, optimizer))
    for module in nets:
        if not isinstance(module, nnx.Module):
            raise TypeError(
                f"train_step: net must be an nnx.Module, not {type(module).__name__}. Parameters come with "
                "the function that takes them: train_step(function, (params, tx), loss_fn)."
            )
    for module in optimizers:
        if not isinstance(module, nnx.Optimizer):
            raise TypeError(
                f"train_step: optimizer must be an nnx.Optimizer, not {type(module).__name__}: "
                "nnx.Optimizer(net, tx, wrt=nnx.Param) of an optax transformation tx."
            )
    if several != (type(optimizer) in (tuple, list)) or len(nets) != len(optimizers) or not nets:
        raise ValueError(
            f"train_step: {len(nets)} net(s) and {len(optimizers)} optimizer(s): give each net its "
            "optimizer, train_step((a, b), (optimizer_of_a, optimizer_of_b), loss_fn). A net that is not "
            "trained is an argument of the step: step(x, y, other)."
        )
    check_alike(nets, "train_step")


def check_alike(nets: Sequence[Any], function: str) -> None:
    for other in nets[1:]:
        _check_pair(nets[0], other, f"{function}: nets")


def check_objects(nets: Sequence[Any], objects: Sequence[Any], function: str) -> None:
    for obj in objects:
        if isinstance(obj, nnx.Optimizer):
            raise TypeError(
                f"{function}: an optimizer is an argument of the step, which would only read it; "
                "train_step(net, optimizer, loss_fn) is where it belongs."
            )
        if isinstance(obj, (DataParallel, DistributedDataParallel)):
            _check_pair(nets[0], obj, f"{function}: the net and an argument")
    if isinstance(nets[0], DistributedDataParallel) and function != "eval_step":
        refuse_other_metrics(objects, function)


def _check_pair(one: Any, other: Any, what: str) -> None:
    if _devices(one) == _devices(other):
        return
    raise ValueError(
        f"{what} are wrapped in different ways, {_described(one)} and {_described(other)}, and "
        "one program runs both. Wrap both alike, on the same devices."
    )


def _devices(net: Any) -> tuple[Any, ...] | None:
    if isinstance(net, DistributedDataParallel):
        return DistributedDataParallel, net.world.everywhere.devices, net.world.local.dim, net.backend
    where = placement_of(net)
    return None if where is None else (where.devices, where.dim)


def _described(net: Any) -> str:
    where: Placement | None = placement_of(net)
    if isinstance(net, DistributedDataParallel):
        where = net.world.everywhere
    return type(net).__name__ + ("" if where is None else f" on {where.N} devices, dim={where.dim}")


def local_placement(net: Any) -> Placement | None:
    """Return where this process's arrays go; None leaves a plain module's in place."""
    return net.world.local if isinstance(net, DistributedDataParallel) else placement_of(net)


def divides_optimizer(net: Any) -> bool:
    """Whether a step for the network divides the optimizer's arrays between the replicas."""
    return isinstance(net, DistributedDataParallel) and net.engine_state.divides_optimizer


def unwrapped(thing: Any) -> Any:
    if isinstance(thing, Bundle):
        return Bundle([unwrapped(net) for net in nets_of(thing)])
    return thing.module if isinstance(thing, DistributedDataParallel) else thing


def state_of(nets: Sequence[Any]) -> EngineState:
    """Return the state of one wrapper; for several, a state with their common hook and sharing of buffers."""
    states = [net.engine_state for net in nets]
    if len(states) == 1:
        return states[0]
    policies = {(state.hook, state.usual.shares_buffers, state.divides_optimizer) for state in states}
    if len(policies) > 1:
        raise ValueError(
            "train_step: the nets' communication hooks, their forward_sync_buffers or their shard_optimizer "
            "differ, and one exchange serves them all. Give all the same."
        )
    return copy.deepcopy(states[0])


def refuse_context(nets: Sequence[Any], joint: EngineState, accumulate: int) -> None:
    for net in nets if len(nets) > 1 else ():
        state = net.engine_state if isinstance(net, DistributedDataParallel) else None
        if state is not None and (state.joining or not state.synchronises):
            raise RuntimeError(
                "train_step: several networks are trained together, and one of them is inside of no_sync() "
                "or join(), which hold for steps of that one alone."
            )
    if not joint.synchronises:
        raise RuntimeError(
            "train_step: it updates, so it cannot be called inside of no_sync(); write "
            "train_step(..., accumulate=k), which communicates once in k calls."
        )
    if joint.joining and accumulate > 1:
        raise RuntimeError(
            "train_step: accumulate cannot be used inside of join(): ranks with other numbers of calls "
            "would leave it in the middle of other accumulations. Use value_and_grad and no_sync() there."
        )
