"""`estimate`: from the shapes of a training step to bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import linen, nnx

from ..._arguments import Positive
from ..._parallel.data_parallel import DataParallel
from ..._parallel.replicated import leaf_marks
from ..._training.distributed_data_parallel import DistributedDataParallel
from ..._training.networks import divides_optimizer, local_placement
from ..._training.training_engine import has_shape, shape_of
from ...errors import NoRowsError
from .hardware import Hardware
from .largest import largest
from .program import Memory, as_shapes, compile_step, scalar, target, transformation
from .report import Estimate
from .schedule import Event, scale, simulate, uncounted

MEMORY_SHARE = 0.75
"""The fraction of a device's memory that JAX reserves: XLA_PYTHON_CLIENT_MEM_FRACTION's default."""


def estimate(
    net: nnx.Module | Callable[[], nnx.Module],
    optimizer: optax.GradientTransformation | nnx.Optimizer | None,
    loss_fn: Callable[..., Any],
    *batch: Any,
    device: str | Hardware = "h100",
    devices: Positive = 8,
    hosts: Positive = 1,
    memory_share: float = MEMORY_SHARE,
    watch_batch: bool = False,
) -> Estimate:
    """Predict a training step's memory on each GPU, its communication between GPUs, and its time.

    `train_step`'s program is compiled for these GPUs, which may be absent, and analysed. Nothing runs and no
    array is created. Without XLA's compiler for GPUs, or for a card that it does not support, a program for
    this host is analysed instead; `Estimate.why` has the reason.

    >>> import jax, jaxpar, optax
    >>> from flax import nnx
    >>> x = jax.ShapeDtypeStruct((8, 4), "float32")
    >>> loss_fn = lambda net, x: net(x).mean()
    >>> prediction = jaxpar.estimate(lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0)), optax.sgd(0.1), loss_fn, x)
    >>> prediction.memory.parameters, prediction.fits
    (40, True)

    Args:
      net: an NNX module, or a function that builds one, which is evaluated for its shapes only; wrapped or
        not. The replicas of a DistributedDataParallel with `shard_optimizer` divide the optimizer's arrays.
      optimizer: an optax transformation or an `nnx.Optimizer`; None for none.
      loss_fn: `loss_fn(net, *batch)`, a scalar.
      batch: the rows of one device [b, ...], as arrays or `jax.ShapeDtypeStruct`s; `replicated` marks others.
      device: a card by name, or its figures.
      devices: GPUs per host. hosts: the number of hosts.
      memory_share: the fraction of a device's memory that JAX may use, above 0 and at most 1.
      watch_batch: also compiles for other batch sizes, to find the most rows that fit.

    Returns:
      Bytes on each device, both lanes of the schedule, and the step's time on 1, 2, 4, ... and all devices.
      docs/estimate.md has the model, its assumptions, and a comparison with published measurements.

    Raises:
      TypeError: not an NNX module, not an optimizer, a loss that is not a scalar.
      ValueError: an unknown card, or a figure out of range. NoRowsError: a batch without rows.

    torch counterpart: none; `accelerate estimate-memory` counts parameters.
    """
    hardware = Hardware.of(device) if isinstance(device, str) else device
    if not 0 < memory_share <= 1:
        raise ValueError(f"estimate: memory_share={memory_share} must be above 0 and at most 1.")
    module, rows = _module(net), _rows(batch)
    tx, shapes = transformation(optimizer, "estimate"), jax.tree.map(shape_of, batch)
    gpus, why = target(hardware, hosts, devices)
    loss, room, n = scalar(loss_fn, "estimate"), memory_share * hardware.memory, hosts * devices

    def compiled(b: int) -> tuple[Memory, list[Event]]:
        return compile_step(module, tx, loss, shapes, b, gpus, hardware, n if divides_optimizer(net) else 0)

    memory, events = compiled(rows)
    numbers = sorted({n, *(2**i for i in range(n.bit_length()))})
    most = largest(lambda b: compiled(b)[0].total, room, rows, memory.total) if watch_batch else None
    return Estimate(
        model=type(module).__name__,
        rows=rows,
        devices=devices,
        hosts=hosts,
        platform=gpus[0].device_kind,
        why=why,
        hardware=hardware,
        room=room,
        memory=memory,
        schedule=simulate(events, hardware, n, devices),
        uncounted=uncounted(events),
        points=scale(rows, events, hardware, numbers, devices),
        largest_batch=most,
    )


def _module(net: Any) -> nnx.Module:
    # A Linen module is callable too, but calling it without variables fails obscurely.
    linen_module = isinstance(net, linen.Module)
    if not isinstance(net, nnx.Module) and callable(net) and not linen_module:
        net = nnx.eval_shape(net, graph=True)
    if not isinstance(net, nnx.Module):
        raise TypeError(
            "estimate: net must be an nnx.Module or a function that makes one, not "
            f"a {type(net).__name__}. A Linen module becomes one by "
            "nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)), x)."
        )
    if not isinstance(net, (DataParallel, DistributedDataParallel)):
        return as_shapes(net)
    placement = local_placement(net)
    if placement is not None and placement.outer_mesh is not None:
        raise TypeError(
            "estimate: net was wrapped with mesh=, and in an estimate every GPU is a replica. Give the "
            "module without its wrapper, for the step of data parallelism over all GPUs."
        )
    wrapper: Any = net
    return as_shapes(wrapper.module)


def _rows(batch: tuple) -> int:
    marked = zip(jax.tree.leaves_with_path(batch), leaf_marks(batch), strict=True)
    named = [leaf for leaf, mark in marked if not mark]
    for path, leaf in named:
        name = "batch" + jax.tree_util.keystr(path)
        if not has_shape(leaf) or not leaf.shape:
            raise NoRowsError(
                f"estimate: {name} is {leaf!r}, which has no rows; a batch holds the arrays of one "
                "device, or jax.ShapeDtypeStruct((rows, ...), dtype)."
            )
    counts = {leaf.shape[0] for _, leaf in named}
    if len(counts) != 1 or not min(counts):
        raise NoRowsError(
            f"estimate: the arrays of batch must have the same number of rows, at least 1; they have "
            f"{', '.join(map(str, sorted(counts))) or 'none'}."
        )
    return counts.pop()
