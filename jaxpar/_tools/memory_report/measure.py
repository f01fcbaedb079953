"""memory_report: programs are compiled, never run, and no array is made or moved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optax
from flax import nnx

from ..._parallel.data_parallel import DataParallel
from ..._parallel.placement import Placement, place
from ..._typing import DeviceLike, PyTree
from ...errors import DeviceError
from .patterns import gathered, sharded
from .report import MemoryReport
from .step import LossFn, plan


def memory_report(
    module: nnx.Module,
    inputs: PyTree,
    loss_fn: LossFn | None = None,
    *,
    optimizer: optax.GradientTransformation | nnx.Optimizer | None = None,
    device_ids: Iterable[DeviceLike] | Placement | None = None,
) -> MemoryReport:
    """How much a training step keeps on each device: torch's DataParallel against jaxpar's.

    ```python
    report = jaxpar.memory_report(net, tokens, loss_fn, optimizer=optax.adam(1e-3))
    print(report.table())
    report.plot("memory.png")
    ```

    Both patterns are those of the same module and the same rows. Some programs are compiled; none
    runs, and nothing is moved.

    Args:
      module: an NNX module, in a DataParallel or not. One without values will do:
        `nnx.eval_shape(lambda: Net(nnx.Rngs(0)))`.
      inputs: the positional arguments with all rows of a batch; anything but a tuple is the only
        one. Arrays may be `jax.ShapeDtypeStruct`s.
      loss_fn: from the outputs of the whole batch to a scalar; the mean of their squares if left out.
      optimizer: an optax transformation or an `nnx.Optimizer`, for its state.
      device_ids: as for `DataParallel`.

    Returns:
      Bytes of parameters, buffers, optimizer state, gradients, activations and outputs on each
      device. The table ends with where each number comes from.

    Raises:
      TypeError: not an NNX module, not an optimizer, or a loss that is no scalar.
      DeviceError: nothing to be parallel over. NoRowsError: no array in `inputs`.
      BackendError: a compiler that does not analyse memory.

    torch counterpart: none; torch tells what was allocated, after the fact.
    """
    placement = place(device_ids, function="memory_report")
    if isinstance(module, DataParallel):
        wrapped: Any = module
        placement = wrapped.placement if device_ids is None else placement
        module = wrapped.module
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"memory_report: module must be an nnx.Module, not a {type(module).__name__}; Linen modules and "
            "functions are not measured."
        )
    if not placement.devices:
        raise DeviceError(
            "memory_report: there is one CPU device and no accelerator, so nothing to compare; "
            "see jaxpar.virtual_devices."
        )
    step = plan(module, inputs, loss_fn, _transformation(optimizer), placement)
    ours = sharded(step)
    return MemoryReport(
        torch=gathered(step, ours.outputs),
        jaxpar=ours.devices,
        model=type(module).__name__,
        sizes=step.sizes,
        kind=placement.devices[0].device_kind,
        compiled_step=ours.whole,
    )


def _transformation(optimizer: Any) -> optax.GradientTransformation | None:
    if isinstance(optimizer, nnx.Optimizer):
        return optimizer.tx
    if optimizer is None or (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        return optimizer
    raise TypeError(
        f"memory_report: optimizer must be an optax transformation (optax.adam(1e-3)) or an nnx.Optimizer, "
        f"not a {type(optimizer).__name__}."
    )
