"""eval_step: a function of a module in evaluation mode, compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from .._parallel.data_parallel import DataParallel
from .._parallel.placement import Placement
from .._parallel.shards import combine, separate
from .._typing import PyTree, Static
from ..data.sending import sender
from .distributed_data_parallel import DistributedDataParallel
from .precision import Precision
from .state import State


def eval_step(
    net: nnx.Module, function: Callable[..., Any] | None = None, *, precision: Precision | None = None
) -> Callable[..., Any]:
    """A compiled `evaluate(*batch)` of a module in evaluation mode.

    Args:
      net: as for `train_step`. Its own mode, statistics and random streams stay as they are.
      function: `function(net, *batch)`, any tree of arrays; the module's outputs if left out.
      precision: as for `train_step`; outputs stay in the computing type.

    Returns:
      A function that gives the tree for the whole batch; of a DistributedDataParallel, for this process's
      rows. Results stay on the device.

    torch counterpart: `net.eval()` and `torch.no_grad()`.
    """
    if not isinstance(net, nnx.Module):
        raise TypeError(f"eval_step: net must be an nnx.Module, not {type(net).__name__}.")
    placement = _placement(net)
    state, send = State(net, placement), sender(placement) if placement is not None else None
    run_with = _call if function is None else function

    def evaluate(*batch: PyTree, **kwargs: PyTree) -> PyTree:
        values = state.take()
        arrays, statics, form = separate((batch, kwargs))
        program = _program(state.view.definition, Static(run_with), precision, statics, form)
        return program(values, arrays if send is None else send(arrays))

    return evaluate


def _placement(net: Any) -> Placement | None:
    if isinstance(net, DistributedDataParallel):
        return net.world.local  # type: ignore[attr-defined]
    if isinstance(net, DataParallel) and net.placement.devices:  # type: ignore[attr-defined]
        return net.placement  # type: ignore[attr-defined]
    return None


def _call(net: Any, *batch: PyTree, **kwargs: PyTree) -> PyTree:
    return net(*batch, **kwargs)


@functools.lru_cache(maxsize=256)
def _program(definition: Any, function: Static, precision: Precision | None, statics: Any, form: Any) -> Any:
    def run(values: list, arrays: list) -> PyTree:
        if precision is not None:
            values = [_lowered(precision, v, k) for v, k in zip(values, definition.kinds, strict=True)]
            arrays = precision.cast(arrays)
        net = definition.merge(values)
        net.eval()
        args, kwargs = combine(arrays, statics, form)
        return function.value(net, *args, **kwargs)

    return jax.jit(run)


def _lowered(precision: Precision, value: Any, kind: str) -> Any:
    return precision.cast(value) if kind == "parameter" else value
