"""A step's arguments without values, and compiled programs: their results, memory and text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ..._devices import devices as _devices
from ..._devices.topology import compiler_options, topology
from ..._parallel.placement import Placement
from ..._parallel.replicated import leaf_marks
from ..._training.divided_program import length
from ..._training.division import division_of
from ..._training.training_engine import trace_step
from ..._typing import PyTree
from ..._upstream.gpu_compiler import cudnn_of
from ...errors import BackendError
from .hardware import Hardware
from .hlo import read
from .schedule import Event, events


class Program:
    """A traced function, compiled for its devices: text, results with shardings, and bytes per device."""

    def __init__(self, traced: jax.stages.Traced, function: str, devices: Sequence[jax.Device]) -> None:
        lowered = traced.lower()
        compiled = lowered.compile(compiler_options=dict(compiler_options(devices)))
        analysis: Any = compiled.memory_analysis()
        if analysis is None:
            raise BackendError(
                f"{function}: the compiler of backend {jax.default_backend()!r} does not analyse memory; "
                "use another backend (JAX_PLATFORMS=cpu)."
            )
        self.text = compiled.as_text() or ""
        self.results = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            lowered.out_info,
            compiled.output_shardings,
        )
        self.arguments = int(analysis.argument_size_in_bytes)
        self.temporary = int(analysis.temp_size_in_bytes)
        # Donated arguments share memory with results, and would be counted twice.
        returned = int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
        self.everything = self.arguments + returned + self.temporary


def with_rows(batch: PyTree, rows: int) -> PyTree:
    """Return the batch's shapes with so many rows; what `replicated` marks has none."""
    leaves, form = jax.tree.flatten(batch)
    shapes = [
        x if mark else jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        for x, mark in zip(leaves, leaf_marks(batch), strict=True)
    ]
    return jax.tree.unflatten(form, shapes)


def size(tree: PyTree) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def state_sizes(net: nnx.Module, optimizer: nnx.Optimizer, replicas: int = 1) -> dict[str, int]:
    """Return the bytes on a device, with its part of each optimizer's array that replicas divide."""
    _, parameters, buffers = nnx.split(net, nnx.Param, ..., graph=True)
    variables = jax.tree.leaves(optimizer.opt_state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    optimizer_bytes = sum(_part(x, replicas) for x in variables)
    return {"parameters": size(parameters), "buffers": size(buffers), "optimizer": optimizer_bytes}


def _part(variable: Any, replicas: int) -> int:
    division = division_of(variable)
    if division is None:
        return size(variable)
    return length(division.shape, replicas) * variable.get_raw_value().dtype.itemsize


def bytes_on(tree: PyTree, device: jax.Device) -> int:
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if device in x.sharding.device_set
    )


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def as_shapes(net: nnx.Module) -> nnx.Module:
    """Return the module without values, so that none of the user's arrays move."""
    definition, state = nnx.split(net, graph=True)
    # Through eval_shape, because some leaves are keys or numbers that have no shape attribute.
    return nnx.merge(definition, jax.eval_shape(lambda state: state, state))


def transformation(optimizer: Any, function: str) -> optax.GradientTransformation:
    """Return the optax transformation of an optimizer; for None, one without state."""
    if optimizer is None:
        return optax.identity()
    if isinstance(optimizer, nnx.Optimizer):
        return optimizer.tx
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"{function}: optimizer must be an optax transformation (optax.adam(1e-3)) or an nnx.Optimizer, "
            f"not a {type(optimizer).__name__}."
        )
    return optimizer


def optimizer_of(net: nnx.Module, tx: optax.GradientTransformation) -> nnx.Optimizer:
    return nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), net, graph=True)


def scalar(loss_fn: Callable[..., Any], function: str) -> Callable[..., jax.Array]:
    """Return `loss_fn` with a check that raises TypeError if the result is not a scalar."""

    def checked(*args: Any) -> jax.Array:
        loss = loss_fn(*args)
        if loss is None or jnp.shape(loss) != ():
            returned = "None" if loss is None else f"shape {jnp.shape(loss)}"
            raise TypeError(
                f"{function}: loss_fn must return a scalar and returned {returned}; take its mean or its sum."
            )
        return jnp.asarray(loss)

    return checked


INSTALL = 'pip install "jaxpar[gpu-compiler]"'


def target(hardware: Hardware, hosts: int, devices: int) -> tuple[tuple[jax.Device, ...], str]:
    """Return the estimate's GPUs, or two of this host's devices in their place and the reason."""
    try:
        if hardware.card:
            return topology(hardware.card, hosts=hosts, devices=devices).devices, ""
        why = f"XLA's compiler has no figures of {hardware.name}"
    except ImportError:
        why = f"XLA's compiler for GPUs is not installed ({INSTALL})"
    first = _devices.devices()[0]
    alike = [d for d in _devices.devices() if d.device_kind == first.device_kind]
    # Two devices are enough to get a program with collectives, and compile fastest.
    return tuple(alike[: min(2, hosts * devices)]), why


@dataclasses.dataclass(frozen=True)
class Memory:
    parameters: int
    buffers: int
    optimizer: int
    gradients: int
    activations: int
    batch: int

    @property
    def total(self) -> int:
        """The peak: all arguments, results and temporaries of the compiled step."""
        return sum(getattr(self, part) for part in PARTS)


PARTS = ("parameters", "buffers", "optimizer", "gradients", "activations", "batch")


def compile_step(
    net: nnx.Module,
    tx: optax.GradientTransformation,
    loss_fn: Callable[..., Any],
    batch: tuple,
    rows: int,
    devices: tuple[jax.Device, ...],
    hardware: Hardware,
    dividing: int = 0,
) -> tuple[Memory, list[Event]]:
    """Return bytes and events of a step on one device, with `rows` rows, which does not run.

    `dividing` replicas divide the optimizer's arrays, which may be more than are compiled for; 0 for none.
    """
    optimizer = optimizer_of(net, tx)
    placement = Placement(devices, 0, devices[0])
    with cudnn_of(devices[0]):
        traced = trace_step(
            net, optimizer, loss_fn, with_rows(batch, len(devices) * rows), placement, divides=dividing > 0
        )
        program = Program(traced, "estimate", devices)
    state, batch_bytes = state_sizes(net, optimizer, len(devices)), size(with_rows(batch, rows))
    temporary = max(program.everything - sum(state.values()) - batch_bytes, 0)
    # XLA reports only a sum of temporary bytes. Gradients are alive together at the end of the backward pass.
    gradients = min(state["parameters"], temporary)
    state = state_sizes(net, optimizer, dividing or 1)
    memory = Memory(**state, gradients=gradients, activations=temporary - gradients, batch=batch_bytes)
    return memory, events(read(program.text), hardware.seconds)
