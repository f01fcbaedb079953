"""`memory_report`: the bytes on every device under torch's DataParallel and under jaxpar's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import SingleDeviceSharding

from ..._devices import devices as _devices
from ..._parallel.data_parallel import DataParallel
from ..._parallel.placement import Placement, place
from ..._parallel.replicated import is_lone_key, is_marked
from ..._parallel.scatter import chunk_sizes
from ..._training.distributed_data_parallel import DistributedDataParallel
from ..._training.networks import divides_optimizer, local_placement
from ..._training.training_engine import has_shape, shape_of, trace_step
from ..._typing import DeviceLike, PyTree
from ...errors import DeviceError, NoRowsError
from .memory import DeviceBytes, MemoryReport
from .program import (
    Program,
    as_shapes,
    bytes_on,
    is_float,
    optimizer_of,
    scalar,
    size,
    state_sizes,
    transformation,
)

LossFn = Callable[[Any], jax.Array]
FUNCTION = "memory_report"


def memory_report(
    module: nnx.Module,
    inputs: PyTree,
    loss_fn: LossFn | None = None,
    *,
    optimizer: optax.GradientTransformation | nnx.Optimizer | None = None,
    device_ids: Iterable[DeviceLike] | Placement | None = None,
) -> MemoryReport:
    """Compare the memory of a training step on each device: torch's DataParallel against jaxpar's.

    torch's gathers all outputs on the first device and computes the loss there, where the master parameters
    and the optimizer state are too. Both patterns use the same module and the same rows. Some programs are
    compiled; none runs, and no array is moved.

    >>> import jax, jaxpar
    >>> from flax import nnx
    >>> net = nnx.eval_shape(lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    >>> x = jax.ShapeDtypeStruct((8, 4), "float32")
    >>> if jaxpar.device_count() > 1:
    ...     report = jaxpar.memory_report(net, x, device_ids=[0, 1])
    ...     assert report.sizes == (4, 4)  # rows of each replica

    Args:
      module: an NNX module, in a wrapper or not, with or without values. The replicas of a
        DistributedDataParallel with `shard_optimizer` divide the optimizer's arrays.
      inputs: the positional arguments with all rows of a batch, as arrays or `jax.ShapeDtypeStruct`s; a
        non-tuple is the single argument.
      loss_fn: from the outputs of all rows to a scalar; the mean of their squares if left out.
      optimizer: an optax transformation or an `nnx.Optimizer`, for its state.
      device_ids: as for `DataParallel`.

    Returns:
      The bytes on each device by purpose, as a MemoryReport. Its table ends with the source of each number.

    Raises:
      TypeError: not an NNX module, not an optimizer, or a loss that is not a scalar.
      DeviceError: a single CPU device. NoRowsError: no array in `inputs`.
      BackendError: a compiler that does not analyse memory.

    torch counterpart: none; torch reports allocations only after they were made.
    """
    placement = place(device_ids, function="memory_report")
    divides = divides_optimizer(module)
    if isinstance(module, (DataParallel, DistributedDataParallel)):
        wrapped: Any = module
        placement = placement if device_ids is not None else local_placement(wrapped) or placement
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
    args = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if not any(map(_has_rows, jax.tree.leaves(args, is_leaf=is_marked))):
        raise NoRowsError(
            "memory_report: inputs hold no array whose rows could be shared out; pass a batch, or "
            "jax.ShapeDtypeStructs of its arrays."
        )
    tx = transformation(optimizer, "memory_report")
    loss = scalar(loss_fn or mean_square, "memory_report")
    step = ReportedStep(as_shapes(module), tx, loss, args, placement, divides)
    # Without the update, which torch runs on the first device only; `compiled_step` has it.
    devices, outputs = sharded(step)
    full_step, optimizer_bytes = complete(step, update=optimizer is not None)
    return MemoryReport(
        torch=gathered(step, outputs),
        jaxpar=tuple(dataclasses.replace(d, optimizer=optimizer_bytes) for d in devices),
        model=type(module).__name__,
        sizes=step.sizes,
        kind=placement.devices[0].device_kind,
        compiled_step=full_step.everything,
        shard_optimizer=divides,
    )


@dataclasses.dataclass(frozen=True)
class ReportedStep:
    """A training step as both patterns take it: a module without values, and the batch as its arguments."""

    net: nnx.Module
    tx: optax.GradientTransformation
    loss: LossFn
    args: tuple
    placement: Placement
    divides: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        first = next(filter(_has_rows, jax.tree.leaves(self.args, is_leaf=is_marked)))
        return chunk_sizes(first.shape[self.placement.dim], self.placement.N)

    @functools.cached_property
    def state(self) -> dict[str, int]:
        return state_sizes(self.net, optimizer_of(self.net, self.tx))

    def loss_and_outputs(self, net: Any, *args: Any) -> tuple[jax.Array, PyTree]:
        outputs = net(*args)
        return self.loss(outputs), outputs

    def trace(
        self, loss_fn: Callable[..., Any], args: tuple, placement: Placement, **options: bool
    ) -> jax.stages.Traced:
        net = DataParallel(self.net, placement)
        return trace_step(net, optimizer_of(net, self.tx), loss_fn, args, placement, **options)


def complete(step: ReportedStep, update: bool) -> tuple[Program, int]:
    """Return the complete step's program, and the bytes of the optimizer's state on each device."""

    def loss(net: Any, *args: Any) -> jax.Array:
        return step.loss_and_outputs(net, *args)[0]

    net: Any = step.net if step.divides else DataParallel(step.net, step.placement)
    optimizer, divides = optimizer_of(net, step.tx), step.divides and update
    traced = trace_step(net, optimizer, loss, step.args, step.placement, update=update, divides=divides)
    optimizer_bytes = state_sizes(step.net, optimizer, step.placement.N)["optimizer"]
    return Program(traced, FUNCTION, step.placement.devices), optimizer_bytes


def sharded(step: ReportedStep) -> tuple[tuple[DeviceBytes, ...], PyTree]:
    """Measure jaxpar's pattern; return its outputs too."""
    traced = step.trace(step.loss_and_outputs, step.args, step.placement, has_aux=True, update=False)
    program = Program(traced, FUNCTION, step.placement.devices)
    gradients, outputs = program.results.replica_state.gradients, program.results.aux
    devices = tuple(
        DeviceBytes(
            device=_devices.name(d),
            **step.state,
            gradients=bytes_on(gradients, d),
            activations=program.temporary,
            outputs=bytes_on(outputs, d),
        )
        for d in step.placement.devices
    )
    return devices, outputs


def gathered(step: ReportedStep, outputs: PyTree) -> tuple[DeviceBytes, ...]:
    """Compute torch's pattern; `outputs` are the gathered outputs of all rows."""
    several, sizes = step.placement.N > 1, step.sizes
    replicas = {b: _replica(step, b) for b in set(sizes)}
    devices = []
    for i, d in enumerate(step.placement.devices):
        # A batch with fewer rows than devices leaves the last devices without a replica, as in torch.
        works = i < len(sizes)
        temporary, output_bytes, seeds = replicas[sizes[i]] if works else (0, 0, 0)
        usage = {part: n * works for part, n in step.state.items()}
        usage |= {
            "optimizer": 0,
            "gradients": usage["parameters"],
            "activations": temporary + seeds,
            "outputs": output_bytes,
        }
        if i == 0:
            # The first replica's rows are a view into the gradient of all outputs, so they cost nothing more.
            usage["activations"] = temporary + _loss(step, outputs)
            usage["optimizer"] = step.state["optimizer"]
            usage["gradients"] += usage["parameters"] * several  # the sum is a separate array
            usage["outputs"] += size(outputs) * several
        devices.append(DeviceBytes(_devices.name(d), **usage))
    return tuple(devices)


def _replica(step: ReportedStep, b: int) -> tuple[int, int, int]:
    """Return the bytes of a replica's temporaries, outputs, and outputs' gradients, which it receives."""
    single = Placement(step.placement.devices[:1], step.placement.dim)

    def with_b_rows(x: Any) -> Any:
        if not _has_rows(x):
            return x
        axis = single.dim % x.ndim
        return jax.ShapeDtypeStruct((*x.shape[:axis], b, *x.shape[axis + 1 :]), x.dtype)

    args = jax.tree.map(with_b_rows, step.args, is_leaf=is_marked)

    def seeded(net: Any, seeds: list[jax.Array], *args: Any) -> tuple[jax.Array, PyTree]:
        outputs = net(*args)
        # The gradient of this sum with respect to the outputs is the seeds.
        products = [(x * seed).sum() for x, seed in zip(_floats(outputs), seeds, strict=True)]
        return sum(products, jnp.zeros(())), outputs

    def unseeded(net: Any, *args: Any) -> tuple[jax.Array, PyTree]:
        outputs = net(*args)
        # Not the user's loss, which may be defined for all rows of the batch only.
        return mean_square(outputs), outputs

    outputs = step.trace(unseeded, args, single, has_aux=True, update=False).out_info.aux
    seeds = _floats(outputs)
    traced = step.trace(seeded, (seeds, *args), single, has_aux=True, update=False)
    return Program(traced, FUNCTION, single.devices).temporary, size(outputs), size(seeds)


def _loss(step: ReportedStep, outputs: PyTree) -> int:
    """Return the temporary bytes of the loss of all rows on one device, and of its gradient."""
    sharding = SingleDeviceSharding(step.placement.devices[0])

    def differentiate(outputs: PyTree) -> tuple[jax.Array, list[jax.Array]]:
        loss, gradients = jax.value_and_grad(step.loss, allow_int=True)(outputs)
        return loss, _floats(gradients)

    traced = jax.jit(differentiate).trace(jax.tree.map(lambda x: shape_of(x, sharding), outputs))
    program = Program(traced, FUNCTION, step.placement.devices)
    return program.temporary + size(program.results[1])


def _has_rows(x: Any) -> bool:
    """Whether it is an array to share out: neither marked by `replicated` nor a key."""
    return has_shape(x) and not is_lone_key(x)


def mean_square(outputs: PyTree) -> jax.Array:
    return sum((jnp.mean(jnp.square(x)) for x in _floats(outputs)), jnp.zeros(()))


def _floats(tree: PyTree) -> list:
    return [x for x in jax.tree.leaves(tree) if is_float(x)]
