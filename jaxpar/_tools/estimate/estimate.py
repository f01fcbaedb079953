"""estimate: shapes in, bytes and seconds out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import optax
from flax import linen, nnx

from ..._devices import devices as _devices
from ..._parallel.data_parallel import DataParallel
from ..._training.distributed_data_parallel import DistributedDataParallel
from ..._training.traced_step import has_shape, shape_of
from ...errors import NoRowsError
from .arguments import as_shapes, scalar, transformation
from .count import count
from .hardware import Hardware
from .report import Estimate
from .scaling import scale

DEVICES = tuple(2**i for i in range(11))


def estimate(
    net: nnx.Module | Callable[[], nnx.Module],
    optimizer: optax.GradientTransformation | nnx.Optimizer | None,
    loss_fn: Callable[..., Any],
    *batch: Any,
    device: str | Hardware = "h100",
    devices: Iterable[int] = DEVICES,
    efficiency: float = 1.0,
    overlap: float = 0.0,
) -> Estimate:
    """What a training step needs on each device, and how long it would take on 1 to 1024 of them.

    ```python
    found = jaxpar.estimate(lambda: Net(nnx.Rngs(0)), optax.adam(1e-3), loss_fn, x, y, device="a100")
    print(found.memory.total, found.points[3].efficiency)
    ```

    Two programs are compiled for the devices of this host; none runs, and no array is made, so the
    model may be far larger than this host.

    Args:
      net: an NNX module, or a function that makes one, which is called for its shapes only.
      optimizer: an optax transformation or an `nnx.Optimizer`; None for none.
      loss_fn: `loss_fn(net, *batch)`, a scalar.
      batch: the rows of one device [b, ...], as arrays or `jax.ShapeDtypeStruct`s.
      device: a card by name, or its figures.
      devices: the numbers of devices that are asked about.
      efficiency: the part of the peak rates that a device reaches, 0 < efficiency <= 1.
      overlap: the part of the communication that lies beside computation, 0 to 1. A step with one
        all-reduce after the backward pass has none.

    Returns:
      Bytes, operations, and a predicted step time for each number of devices. docs/estimate.md has
      the model and what it leaves out.

    Raises:
      TypeError: not an NNX module, not an optimizer, a loss that is no scalar.
      ValueError: an unknown card, or a figure out of range. NoRowsError: a batch without rows.

    torch counterpart: none; `accelerate estimate-memory` counts parameters.
    """
    hardware = Hardware.of(device) if isinstance(device, str) else device
    numbers = tuple(devices)
    if not 0 < efficiency <= 1:
        raise ValueError(f"estimate: efficiency={efficiency} must be above 0 and at most 1.")
    if not 0 <= overlap <= 1:
        raise ValueError(f"estimate: overlap={overlap} must be between 0 and 1.")
    if not numbers or min(numbers) < 1:
        raise ValueError(f"estimate: devices={numbers} must be numbers from 1 up.")
    module, rows = _module(net), _rows(batch)
    tx, shapes = transformation(optimizer, "estimate"), jax.tree.map(shape_of, batch)
    memory, work, traffic = count(module, tx, scalar(loss_fn, "estimate"), shapes)
    points = scale(rows, work, traffic, hardware, numbers, efficiency=efficiency, overlap=overlap)
    return Estimate(
        model=type(module).__name__,
        rows=rows,
        platform=_devices.devices()[0].device_kind,
        hardware=hardware,
        memory=memory,
        work=work,
        traffic=traffic,
        efficiency=efficiency,
        overlap=overlap,
        points=points,
    )


def _module(net: Any) -> nnx.Module:
    """The module that is asked about, without values and without a wrapper."""
    linen_module = isinstance(net, linen.Module)  # callable as well, and not without its variables
    if not isinstance(net, nnx.Module) and callable(net) and not linen_module:
        net = nnx.eval_shape(net, graph=True)
    if not isinstance(net, nnx.Module):
        raise TypeError(
            "estimate: net must be an nnx.Module or a function that makes one, not "
            f"a {type(net).__name__}. A Linen module becomes one by "
            "nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)), x)."
        )
    wrapper: Any = net
    return as_shapes(wrapper.module if isinstance(net, (DataParallel, DistributedDataParallel)) else net)


def _rows(batch: tuple) -> int:
    """How many rows the batch has, if all its arrays have as many."""
    named = jax.tree.leaves_with_path(batch)
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
