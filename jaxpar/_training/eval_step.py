"""eval_step: a function of a module in evaluation mode, which is a part of the program, compiled once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from .._arguments import EXPLAINED, name_call
from .._devices.context import outside_for, returned
from .._parallel.compiling import begun
from .._parallel.modules import Changes
from .._parallel.modules.bundle import set_aside
from .._parallel.modules.nnx_view import NNXDefinition, view_nnx
from .._parallel.placement import Placement
from .._parallel.programs import Programs
from .._parallel.replicated import plain_arguments
from .._parallel.shards import combine
from .._tree import is_real, paths
from .._typing import PyTree, Static, TreeDef
from ..errors import BatchError
from . import function_net
from .agreement import Agreement, Alone
from .arrays import Arrays, CallArrays
from .compiled_step import Program, ReplicaState, StepResult
from .engine import Engine
from .engine_state import EngineState
from .linen_net import collections_of, is_linen, wrapped
from .local_batch import check_batch, empty, without_torch
from .networks import as_one, check_alike, check_objects, local_placement
from .precision import Precision, check_precision
from .state_optimizer import held_by
from .work import Whole, WholeBatch
from .world import ALONE

# A Linen module is accepted, too.
Nets: TypeAlias = Annotated[nnx.Module | Sequence[nnx.Module], EXPLAINED]


def eval_step(
    net: Nets, function: Callable[..., Any] | None = None, *, precision: Precision | None = None
) -> Callable[..., Any]:
    """Compile `evaluate(*batch)` for a module in evaluation mode.

    >>> import jax.numpy as jnp, jaxpar
    >>> from flax import nnx
    >>> net = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    >>> evaluate = jaxpar.eval_step(net)
    >>> evaluate(jnp.ones((4, 3))).shape
    (4, 2)

    Args:
      net: as for `train_step`; its mode, statistics and streams stay as they are. For a Linen module
        `evaluate(state, *batch)` takes its TrainState, or its variables.
      function: `function(net, *batch)`, any tree of arrays; the module's outputs if left out. The batch may
        hold modules, which are evaluated and stay as they are, `nnx.Rngs`, whose streams advance, and
        metrics, which count this process's rows.
      precision: as for `train_step`; outputs stay in the computing type.

    Returns:
      A function that returns the tree for the complete batch; for a DistributedDataParallel, for this
      process's rows. Results stay on the device.

    Raises (when called):
      LeafError, RangeError, DeletedError: as `train_step`.
      BatchError: the batch is empty, and the result, for which this waits, holds a NaN.

    torch counterpart: `net.eval()` and `torch.no_grad()`.
    """
    if function_net.is_function(net):
        return _with_state(net, function_net.variables_of, function_net.wrapped, function, precision)
    if is_linen(net):
        return _with_state(net, collections_of, wrapped, function, precision)
    nets = tuple(net) if isinstance(net, (tuple, list)) else (net,)
    for module in nets:
        if not isinstance(module, nnx.Module):
            raise TypeError(f"eval_step: net must be an nnx.Module, not {type(module).__name__}.")
    check_alike(nets, "eval_step")
    placement = local_placement(nets[0])
    check_precision(precision, "eval_step")
    adapter = functools.partial(function_net.FunctionLoss, evaluates=True)
    run = function_net.adapted(nets, operator.call if function is None else function, adapter)
    with outside_for(placement):
        arrays = EvaluationArrays(as_one(net), as_one(net), placement, ALONE, "eval_step")
    state = EngineState(Alone())
    state.replace(ReplicaState())  # an evaluation has no per-replica state
    engine = Engine(arrays, OutputWork(run, precision, placement), state, ALONE, run)

    def evaluate(*batch: PyTree, **kwargs: PyTree) -> PyTree:
        batch, kwargs, objects = set_aside(batch, kwargs)
        batch, kwargs = without_torch(batch, kwargs)
        check_objects(nets, objects, "eval_step")
        with outside_for(placement):
            arrays.bring(objects)
        check_batch(batch, kwargs, jax.tree.leaves((batch, kwargs)), "eval_step")
        try:
            with outside_for(placement):
                outputs = returned(engine.step(batch, kwargs).aux, 0 if placement is None else placement.dim)
        except Exception as error:
            name_call(error, "eval_step", batch, kwargs)
            raise
        empty_array = empty(batch, kwargs)
        if empty_array is not None:
            _check_numbers(outputs, empty_array)
        return outputs

    return evaluate


def _with_state(
    net: Any,
    variables_of: Callable[[Any], dict[str, PyTree]],
    holding: Callable[[Any, Any], Any],
    function: Callable[..., Any] | None,
    precision: Precision | None,
) -> Callable[..., Any]:
    latest: list[Any] = []

    def evaluate(state: Any, *batch: PyTree, **kwargs: PyTree) -> PyTree:
        variables = variables_of(state)
        if not latest or not held_by(latest[0]).fits(variables):
            holder = holding(net, variables)
            latest[:] = [holder, eval_step(holder, function, precision=precision)]
        else:
            held_by(latest[0]).take(variables)
        return latest[1](*batch, **kwargs)

    return evaluate


class EvaluationArrays(CallArrays):
    """A module's arrays, which stay as they are, and the streams and metrics of a call, which advance."""

    def commit(self, changes: Changes) -> None:
        advancing = [x for x in self.objects if isinstance(x, (nnx.Rngs, nnx.RngStream, nnx.Metric))]
        moving = {id(leaf) for x in advancing for leaf in view_nnx(x).leaves}
        super().commit({i: x for i, x in changes.items() if id(self.view.leaves[i]) in moving})


def _check_numbers(outputs: PyTree, empty_array: str) -> None:
    for leaf, name in zip(jax.tree.leaves(outputs), paths(outputs, "result"), strict=True):
        if is_real(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact) and jnp.isnan(leaf).any():
            raise BatchError(
                f"eval_step: {empty_array}: the batch is empty, and {name}, of shape {leaf.shape}, is not a "
                "number. Leave the batch out, or return sums and divide at the end."
            )


class OutputWork(WholeBatch):
    """A function of the module and the complete batch, without gradients."""

    def __init__(
        self, function: Callable[..., Any], precision: Precision | None, placement: Placement | None
    ):
        super().__init__(placement)
        self._function, self._precision = function, precision
        self.programs = Programs(_compiled)

    def program(self, arrays: Arrays, batch: Whole, agreed: Agreement, keep: bool) -> tuple[Program, Any]:
        del agreed, keep
        what = arrays.definition, arrays.loss_of(self._function), self._precision, batch.statics, batch.form
        return self.programs(*what), batch.arrays


def _compiled(
    definition: NNXDefinition,
    function: Static,
    precision: Precision | None,
    statics: tuple[Static | None, ...],
    form: TreeDef,
) -> Program:
    def outputs(net: Any, *args: PyTree, **kwargs: PyTree) -> PyTree:
        net.eval()
        return function.value(net, *args, **kwargs)

    def run(values: list, extra: dict[str, Any], replica_state: ReplicaState, arrays: list) -> StepResult:
        del extra, replica_state
        begun()
        if precision is not None:
            pairs = zip(values, definition.kinds, strict=True)
            values = [precision.cast(x) if kind == "parameter" else x for x, kind in pairs]
            arrays = precision.cast(arrays)
        with plain_arguments(combine(arrays, statics, form)) as (args, kwargs):
            result, changes = definition.apply(outputs, values, None, args, kwargs)
        return StepResult((), result, (), changes, {}, None)

    return jax.jit(run)
