"""estimate: shapes in, bytes and seconds out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import optax
from flax import nnx

from ..._devices import devices as _devices
from .count import count
from .hardware import Hardware
from .report import Estimate
from .scaling import scale
from .step import plan

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
    step = plan(net, loss_fn, batch, optimizer)
    memory, work, traffic = count(step)
    points = scale(step.rows, work, traffic, hardware, numbers, efficiency=efficiency, overlap=overlap)
    return Estimate(
        model=step.model,
        rows=step.rows,
        platform=_devices.devices()[0].device_kind,
        hardware=hardware,
        memory=memory,
        work=work,
        traffic=traffic,
        efficiency=efficiency,
        overlap=overlap,
        points=points,
    )
