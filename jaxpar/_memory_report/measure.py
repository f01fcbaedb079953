"""Finding the bytes: programs are compiled, never run, and no array is made or moved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from .. import _devices
from .._data_parallel import DataParallel
from .._placement import Placement, place
from .._scatter import chunk_sizes
from .._tree import is_array
from .._typing import REPLICA, DeviceLike, PyTree
from ..errors import BackendError, DeviceError, NoRowsError
from .report import DeviceBytes, MemoryReport

LossFn = Callable[[Any], jax.Array]


def memory_report(
    module: nnx.Module,
    inputs: PyTree,
    loss_fn: LossFn | None = None,
    *,
    optimizer: optax.GradientTransformation | nnx.Optimizer | None = None,
    device_ids: Iterable[DeviceLike] | Placement | None = None,
) -> MemoryReport:
    """How much a training step keeps on each device: torch's DataParallel against jaxpar's.

    Nothing is computed and nothing is moved; some programs are compiled. Both patterns are those of
    the same module on the same rows.

    Args:
      module: an NNX module, in a DataParallel or not.
      inputs: the positional arguments with all rows of a batch; anything but a tuple is the only
        one. Arrays may be `jax.ShapeDtypeStruct`s.
      loss_fn: outputs of the whole batch to a scalar; the mean of their squares if left out.
      optimizer: an optax transformation or an `nnx.Optimizer`, for its state.
      device_ids: as for `DataParallel`.

    Returns:
      Bytes of parameters, buffers, optimizer state, gradients, activations and outputs on each
      device, with `.table()`, `.plot(path)` and `.as_dict()`. The table ends with where each number
      comes from.

    Raises:
      TypeError: not an NNX module, not an optimizer, or a loss that is no scalar.
      DeviceError: there are no devices to be parallel over. NoRowsError: no array in `inputs`.
      BackendError: a compiler that does not analyse memory.

    torch counterpart: none; torch reports what was allocated, after the fact.
    """
    placement = place(device_ids, function="memory_report")
    if isinstance(module, DataParallel):
        placement, module = (placement if device_ids else module.placement), module.module
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"memory_report: {type(module).__name__} is no nnx.Module; only these are measured so far."
        )
    if not placement.devices:
        raise DeviceError(
            "memory_report: there is one CPU device and no accelerator, so nothing to compare; "
            "see jaxpar.virtual_devices."
        )
    step = _Step.of(module, inputs, loss_fn or _mean_square, _transformation(optimizer), placement)
    jaxpar, outputs, whole = _jaxpar(step)
    return MemoryReport(
        torch=_torch(step, outputs),
        jaxpar=jaxpar,
        model=type(module).__name__,
        sizes=step.sizes,
        kind=f"{len(placement.devices)} x {placement.devices[0].device_kind}",
        compiled_step=whole,
    )


@dataclasses.dataclass(frozen=True)
class _Step:
    """A training step as shapes: state, batch, and what is done with them."""

    graphdef: Any
    params: PyTree
    buffers: PyTree
    arrays: list[jax.ShapeDtypeStruct]
    build: Callable[[list[Any]], tuple]
    loss_fn: LossFn
    tx: optax.GradientTransformation | None
    placement: Placement

    @classmethod
    def of(cls, module: nnx.Module, inputs: PyTree, loss_fn: LossFn, tx: Any, placement: Placement) -> _Step:
        args = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        leaves, treedef = jax.tree.flatten(args)
        where = [i for i, x in enumerate(leaves) if is_array(x) or isinstance(x, jax.ShapeDtypeStruct)]
        if not where:
            raise NoRowsError(
                "memory_report: inputs hold no array whose rows could be shared out; pass a batch, or "
                "jax.ShapeDtypeStructs of its arrays."
            )

        def build(arrays: list[Any]) -> tuple:
            filled = list(leaves)
            for i, x in zip(where, arrays, strict=True):
                filled[i] = x
            return jax.tree.unflatten(treedef, filled)

        graphdef, params, buffers = nnx.split(module, nnx.Param, ...)
        arrays = [_shape(leaves[i]) for i in where]
        return cls(graphdef, _shapes(params), _shapes(buffers), arrays, build, loss_fn, tx, placement)

    @property
    def sizes(self) -> tuple[int, ...]:
        return chunk_sizes(self.arrays[0].shape[self.placement.dim], self.placement.N)

    def module(self, params: PyTree, buffers: PyTree) -> nnx.Module:
        return nnx.merge(self.graphdef, params, buffers, copy=True)

    def state(self) -> PyTree:
        """The optimizer's."""
        return jax.eval_shape(self.tx.init, self.params) if self.tx else ()

    def rows(self, b: int | None) -> list[jax.ShapeDtypeStruct]:
        """The batch, or as many rows of it as one replica gets."""
        return self.arrays if b is None else [_with_rows(x, self.placement.dim, b) for x in self.arrays]


def _jaxpar(step: _Step) -> tuple[tuple[DeviceBytes, ...], PyTree, int]:
    """What each device holds, the shapes of the outputs, and XLA's sum for the whole step."""
    placement = step.placement

    def differentiate(params: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        def loss_of(params: PyTree) -> tuple[jax.Array, tuple]:
            net = DataParallel(step.module(params, buffers), placement)
            outputs = net(*step.build(arrays))
            return step.loss_fn(outputs), (outputs, nnx.state(net.module, nnx.Not(nnx.Param)))

        (loss, (outputs, changed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, outputs, gradients, changed

    def train(params: PyTree, state: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        loss, _, gradients, changed = differentiate(params, buffers, arrays)
        if step.tx:
            updates, state = step.tx.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
        return params, state, changed, loss

    params, buffers, state = (
        _placed(t, placement.replicated) for t in (step.params, step.buffers, step.state())
    )
    batch = [_placed(x, _even(x, placement)) for x in step.arrays]
    _check_loss(step, differentiate, params, buffers, batch)
    program = _Program(differentiate, params, buffers, batch)
    _, outputs, gradients, _ = program.results
    whole = _Program(train, params, state, buffers, batch, donate=(0, 1)).everything
    held = tuple(
        DeviceBytes(
            device=_devices.name(d),
            parameters=held_bytes(params, d),
            buffers=held_bytes(buffers, d),
            optimizer=held_bytes(state, d),
            gradients=held_bytes(gradients, d),
            activations=program.temporary,
            outputs=held_bytes(outputs, d),
        )
        for d in placement.devices
    )
    return held, outputs, whole


def _torch(step: _Step, outputs: PyTree) -> tuple[DeviceBytes, ...]:
    """The same by the rules of torch; `outputs` are those of the whole batch."""
    placement, first = step.placement, step.placement.devices[0]
    loss = _Program(jax.value_and_grad(step.loss_fn, allow_int=True), _placed(outputs, _on(first)))
    at_loss = loss.temporary + held_bytes(loss.results[1], first)
    replicas = {b: _replica(step, b) for b in set(step.sizes)}
    parameters, buffers, state = size(step.params), size(step.buffers), size(step.state())
    held = []
    for i, d in enumerate(placement.devices):
        is_first, works = i == 0, i < len(step.sizes)
        temporary, rows, seed = replicas[step.sizes[i]] if works else (0, 0, 0)
        held.append(
            DeviceBytes(
                device=_devices.name(d),
                parameters=parameters * works,
                buffers=buffers * works,
                optimizer=state * is_first,
                gradients=parameters * (works + (is_first and placement.N > 1)),
                # The first device cuts its rows out of the gradient of all outputs; others get a copy.
                activations=temporary + (at_loss if is_first else seed),
                outputs=rows + size(outputs) * (is_first and placement.N > 1),
            )
        )
    return tuple(held)


def _replica(step: _Step, b: int) -> tuple[int, int, int]:
    """Of one replica with b rows: temporary bytes, its outputs', and those of their gradient."""

    def forward(params: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        net = step.module(params, buffers)
        return net(*step.build(arrays)), nnx.state(net, nnx.Not(nnx.Param))  # type: ignore[operator]

    def differentiate(params: PyTree, buffers: PyTree, arrays: list[Any], seeds: PyTree) -> tuple:
        outputs, pull, changed = jax.vjp(lambda p: forward(p, buffers, arrays), params, has_aux=True)
        leaves, treedef = jax.tree.flatten(outputs)
        given = iter(seeds)
        full = [next(given) if _is_float(x) else np.zeros(x.shape, jax.dtypes.float0) for x in leaves]
        return outputs, pull(jax.tree.unflatten(treedef, full)), changed

    place = _on(step.placement.devices[0])
    state = _placed((step.params, step.buffers, step.rows(b)), place)
    outputs, _ = jax.eval_shape(forward, *state)
    seeds = _placed([x for x in jax.tree.leaves(outputs) if _is_float(x)], place)
    return _Program(differentiate, *state, seeds).temporary, size(outputs), size(seeds)
