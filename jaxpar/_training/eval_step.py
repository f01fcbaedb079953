"""eval_step: a function of a module in evaluation mode, compiled once.

torch writes `net.eval()` and `torch.no_grad()` around a loop and `net.train()` behind it. Here the mode is a
part of the program, so the module's own mode is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._parallel.modules.nnx_view import NNXDefinition
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._parallel.shards import combine
from .._tree import is_real, paths
from .._typing import PyTree, Static, TreeDef
from ..errors import BatchError
from .agreement import Agreement, Alone
from .arrays import Arrays, ModuleArrays
from .batches import check_batch, empty, without_torch
from .compiled_step import Own, Program, Result
from .distributed_data_parallel import DistributedDataParallel
from .engine import Engine
from .engine_state import EngineState
from .precision import Precision, check_precision
from .work import Whole, WholeBatch, placement_of
from .world import ALONE


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

    Raises (when called):
      LeafError, RangeError, DeletedError: as `train_step`. BatchError: the batch is empty, and the result
      holds a NaN, as the mean of no rows is. Of an empty batch alone the result is waited for.

    torch counterpart: `net.eval()` and `torch.no_grad()`.
    """
    if not isinstance(net, nnx.Module):
        raise TypeError(f"eval_step: net must be an nnx.Module, not {type(net).__name__}.")
    placement = net.world.local if isinstance(net, DistributedDataParallel) else placement_of(net)
    check_precision(precision, "eval_step")
    run = _call if function is None else function
    arrays = ModuleArrays(net, net, nnx.Nothing(), placement, ALONE, {}, "eval_step")
    state = EngineState(Alone())
    state.own = Own()  # an evaluation keeps nothing
    engine = Engine(arrays, OutputWork(run, precision, placement), state, ALONE, run)

    def evaluate(*batch: PyTree, **kwargs: PyTree) -> PyTree:
        batch, kwargs = without_torch(batch, kwargs)
        check_batch(batch, kwargs, jax.tree.leaves((batch, kwargs)), "eval_step")
        outputs = engine.step(batch, kwargs).aux
        found = empty(batch, kwargs)
        if found is not None:
            _check_numbers(outputs, found)
        return outputs

    return evaluate


def _check_numbers(outputs: PyTree, found: str) -> None:
    """Of an empty batch, rows and sums are right and a mean is not a number, which torch returns."""
    for leaf, name in zip(jax.tree.leaves(outputs), paths(outputs, "result"), strict=True):
        if is_real(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact) and jnp.isnan(leaf).any():
            raise BatchError(
                f"eval_step: {found}: the batch is empty, and {name}, of shape {leaf.shape}, is not a "
                "number. Leave the batch out, or return sums and divide at the end."
            )


def _call(net: Callable[..., PyTree], *batch: PyTree, **kwargs: PyTree) -> PyTree:
    return net(*batch, **kwargs)


class OutputWork(WholeBatch):
    """What a function of the module and the whole batch returns. Nothing is kept, and nothing changes."""

    def __init__(
        self, function: Callable[..., Any], precision: Precision | None, placement: Placement | None
    ):
        super().__init__(placement)
        self._function, self._precision = Static(function), precision
        self.programs = Programs(_compiled)

    def program(self, arrays: Arrays, batch: Whole, agreed: Agreement, keep: bool) -> tuple[Program, Any]:
        del agreed, keep
        what = arrays.definition, self._function, self._precision, batch.statics, batch.form
        return self.programs(*what), batch.arrays


def _compiled(
    definition: NNXDefinition,
    function: Static,
    precision: Precision | None,
    statics: tuple[Static | None, ...],
    form: TreeDef,
) -> Program:
    def run(values: list, extra: dict[str, Any], own: Own, arrays: list) -> Result:
        del extra, own
        if precision is not None:
            values = [_lowered(precision, v, k) for v, k in zip(values, definition.kinds, strict=True)]
            arrays = precision.cast(arrays)
        net = definition.merge(values)
        net.eval()
        args, kwargs = combine(arrays, statics, form)
        return Result((), function.value(net, *args, **kwargs), (), {}, {}, None)

    return jax.jit(run)


def _lowered(precision: Precision, value: PyTree, kind: str) -> PyTree:
    return precision.cast(value) if kind == "parameter" else value
