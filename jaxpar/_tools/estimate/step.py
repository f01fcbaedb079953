"""Compile `train_step`'s program for the devices of an estimate, or of this host in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx

from ..._devices import devices as _devices
from ..._devices.topology import topology
from ..._parallel.placement import Placement
from ..._training.training_engine import trace_step
from ..._upstream.gpu_compiler import cudnn_of
from .hardware import Hardware
from .hlo import read
from .program import Program, optimizer_of, size, state_sizes, with_rows
from .schedule import Event, events

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
) -> tuple[Memory, list[Event]]:
    """Return bytes and events of a step on one device, with `rows` rows, which does not run."""
    optimizer = optimizer_of(net, tx)
    placement = Placement(devices, 0, devices[0])
    with cudnn_of(devices[0]):
        traced = trace_step(net, optimizer, loss_fn, with_rows(batch, len(devices) * rows), placement)
        program = Program(traced, "estimate", devices)
    state, batch_bytes = state_sizes(net, optimizer), size(with_rows(batch, rows))
    temporary = max(program.everything - sum(state.values()) - batch_bytes, 0)
    # XLA reports only a sum of temporary bytes. Gradients are alive together at the end of the backward pass.
    gradients = min(state["parameters"], temporary)
    memory = Memory(**state, gradients=gradients, activations=temporary - gradients, batch=batch_bytes)
    return memory, events(read(program.text), hardware.seconds)
