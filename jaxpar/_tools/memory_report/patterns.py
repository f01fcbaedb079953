"""The two patterns, each as the bytes on every device."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..._devices import devices as _devices
from ..._parallel.data_parallel import DataParallel
from ..._parallel.placement import Placement
from ..._typing import REPLICA, PyTree
from ..compiled import Program, held, is_float, placed, size
from .figures import DeviceBytes
from .step import Step

BUFFERS = nnx.Not(nnx.Param)
FUNCTION = "memory_report"


class Sharded(NamedTuple):
    """jaxpar's pattern: bytes on each device, what comes out, and XLA's sum for the whole step."""

    devices: tuple[DeviceBytes, ...]
    outputs: PyTree
    whole: int


def sharded(step: Step) -> Sharded:
    """jaxpar's pattern: one program over all devices, in which everything stays where it is."""
    placement = step.placement

    def differentiate(params: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        def loss_of(params: PyTree) -> tuple[jax.Array, tuple]:
            net = DataParallel(step.module(params, buffers), placement)
            outputs = net(*step.arguments(arrays))
            return step.loss(outputs), (outputs, nnx.state(net.module, BUFFERS))

        (loss, (outputs, changed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, outputs, changed, gradients

    def train(params: PyTree, state: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        loss, _, changed, gradients = differentiate(params, buffers, arrays)
        if step.tx is None:
            return loss, changed, gradients
        updates, state = step.tx.update(gradients, state, params)
        return loss, changed, optax.apply_updates(params, updates), state

    params, buffers, state = placed((step.params, step.buffers, step.optimizer), placement.replicated)
    batch = [placed(x, _rows_over_devices(x, placement)) for x in step.arrays]
    program = Program(differentiate, params, buffers, batch, function=FUNCTION)
    _, outputs, _, gradients = program.results
    devices = tuple(
        DeviceBytes(
            device=_devices.name(d),
            parameters=held(params, d),
            buffers=held(buffers, d),
            optimizer=held(state, d),
            gradients=held(gradients, d),
            activations=program.temporary,
            outputs=held(outputs, d),
        )
        for d in placement.devices
    )
    donated = (0, 1) if step.tx else ()
    whole = Program(train, params, state, buffers, batch, donate=donated, function=FUNCTION)
    return Sharded(devices, outputs, whole.everything)


def gathered(step: Step, outputs: PyTree) -> tuple[DeviceBytes, ...]:
    """torch's pattern; `outputs` are those of the whole batch, gathered on the first device."""
    several = step.placement.N > 1
    parameters, buffers = size(step.params), size(step.buffers)
    replicas = {b: _replica(step, b) for b in set(step.sizes)}
    devices = []
    for i, d in enumerate(step.placement.devices):
        works = i < len(step.sizes)
        replica = replicas[step.sizes[i]] if works else Replica(0, 0, 0)
        here = {
            "parameters": parameters * works,
            "buffers": buffers * works,
            "optimizer": 0,
            "gradients": parameters * works,
            "activations": replica.temporary + replica.seeds,
            "outputs": replica.outputs,
        }
        if i == 0:
            # The rows of the first replica are cut out of the gradient of all outputs, without a copy.
            here["activations"] = replica.temporary + _loss(step, outputs)
            here["optimizer"] = size(step.optimizer)
            here["gradients"] += parameters * several  # the sum is an array of its own
            here["outputs"] += size(outputs) * several
        devices.append(DeviceBytes(_devices.name(d), **here))
    return tuple(devices)


class Replica(NamedTuple):
    """Bytes of one replica's program: temporary ones, its outputs and the gradient it gets of them."""

    temporary: int
    outputs: int
    seeds: int


def _replica(step: Step, b: int) -> Replica:
    """Forward and backward of b rows; the gradient of the outputs comes from outside."""

    def forward(params: PyTree, buffers: PyTree, arrays: list[Any]) -> tuple:
        net = step.module(params, buffers)
        return net(*step.arguments(arrays)), nnx.state(net, BUFFERS)

    def differentiate(params: PyTree, buffers: PyTree, arrays: list[Any], seeds: list[Any]) -> tuple:
        pulled: tuple = jax.vjp(lambda p: forward(p, buffers, arrays), params, has_aux=True)
        outputs, pull, changed = pulled
        given = iter(seeds)
        full = jax.tree.map(
            lambda x: next(given) if is_float(x) else np.zeros(x.shape, jax.dtypes.float0), outputs
        )
        return outputs, pull(full), changed

    here = SingleDeviceSharding(step.placement.devices[0])
    state = placed((step.params, step.buffers, step.rows(b)), here)
    outputs, _ = jax.eval_shape(forward, *state)
    seeds = placed([x for x in jax.tree.leaves(outputs) if is_float(x)], here)
    program = Program(differentiate, *state, seeds, function=FUNCTION)
    return Replica(program.temporary, size(outputs), size(seeds))


def _loss(step: Step, outputs: PyTree) -> int:
    """Temporary bytes of the loss of the whole batch on one device, and of its gradient."""
    leaves, treedef = jax.tree.flatten(outputs)

    def differentiate(leaves: list[Any]) -> tuple:
        def loss_of(floats: list[Any]) -> jax.Array:
            given = iter(floats)
            return step.loss(jax.tree.unflatten(treedef, [next(given) if is_float(x) else x for x in leaves]))

        return jax.value_and_grad(loss_of)([x for x in leaves if is_float(x)])

    here = SingleDeviceSharding(step.placement.devices[0])
    program = Program(differentiate, placed(leaves, here), function=FUNCTION)
    return program.temporary + size(program.results[1])


def _rows_over_devices(x: jax.ShapeDtypeStruct, placement: Placement) -> NamedSharding:
    """Where a batch that is made inside of jit, or sent there, lies: cut if it can be cut evenly."""
    dim = placement.dim
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % placement.N:
        return placement.replicated
    return NamedSharding(placement.mesh, PartitionSpec(*[None] * (dim % x.ndim), REPLICA))
