"""What a step is, in numbers: bytes on a device, operations, bytes that devices exchange.

Two programs are compiled and none is run. The gradients of one replica have the activations as their
temporary bytes. The step of two devices has the all-reduces that any number of devices would have, because
each device holds all parameters; with one device to compile for, these are counted from the shapes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx

from ..._devices import devices as _devices
from ..._parallel.placement import Placement
from ..._training.traced_step import trace_step
from .arguments import optimizer_of
from .matrices import products
from .program import Program, is_float, size, state_sizes

COMPILED, SHAPES = "compiled", "shapes"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device, by purpose.

    Attributes:
      activations: temporary bytes of the compiled forward and backward pass.
      compiled_step: XLA's sum for the whole compiled step: arguments, results and temporaries, those
        counted once that are given back in place.
    """

    parameters: int
    buffers: int
    optimizer: int
    gradients: int
    activations: int
    batch: int
    compiled_step: int

    @property
    def total(self) -> int:
        """All purposes together; not all are there at the same instant."""
        return sum(getattr(self, part) for part in PARTS)


PARTS = ("parameters", "buffers", "optimizer", "gradients", "activations", "batch")


@dataclasses.dataclass(frozen=True)
class Work:
    """What a device does in one step.

    Attributes:
      flops: floating-point operations. bytes: read from and written to its memory.
      kind: the type in which most matrix products are computed.
    """

    flops: float
    bytes: float
    kind: str


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What devices exchange in one step: all-reduces and their bytes on each device.

    `source` is "compiled" or "shapes".
    """

    count: int
    bytes: int
    source: str


def count(
    net: nnx.Module, tx: optax.GradientTransformation, loss_fn: Callable[..., Any], batch: tuple
) -> tuple[Memory, Work, Traffic]:
    """Compiles and counts, for one device's rows and a net that may have no values."""
    optimizer = optimizer_of(net, tx)
    first = _devices.devices()[0]
    alike = [d for d in _devices.devices() if d.device_kind == first.device_kind][:2]

    def program(devices: list[jax.Device], update: bool) -> Program:
        placement, n = Placement(tuple(devices)), len(devices)
        rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((n * x.shape[0], *x.shape[1:]), x.dtype), batch)
        return Program(trace_step(net, optimizer, loss_fn, rows, placement, update=update), "estimate")

    gradients, whole = program([first], update=False), program(alike, update=True)
    state = state_sizes(net, optimizer)
    memory = Memory(
        **state,
        gradients=state["parameters"],
        activations=gradients.temporary,
        batch=size(batch),
        compiled_step=whole.everything,
    )
    # A loop's body counts once in XLA's analysis; matrix products are counted with its turns.
    matrices = products(whole.jaxpr)
    work = Work(
        flops=max(whole.flops, matrices.flops),
        bytes=max(whole.accessed, matrices.bytes),
        kind=matrices.kind or "float32",
    )
    if len(alike) > 1:
        found = all_reduces(whole.text)
        return memory, work, Traffic(len(found), sum(found), COMPILED)
    exchanged = [x for x in jax.tree.leaves(nnx.state(net, graph=True)) if is_float(x)]
    kinds = {x.dtype for x in exchanged}
    return memory, work, Traffic(max(len(kinds), 1), size(exchanged), SHAPES)


def all_reduces(text: str) -> list[int]:
    """Bytes of each all-reduce of a compiled program, from its HLO.

    >>> all_reduces("  %x = (f32[2,3]{1,0}, bf16[]) all-reduce(%a, %b), replica_groups={}")
    [26]
    """
    found = re.findall(r"= (\(.*?\)|\S+) all-reduce(?:-start)?\(", text)
    return [sum(_bytes(kind, shape) for kind, shape in SHAPE.findall(result)) for result in found]


SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def _bytes(kind: str, shape: str) -> int:
    bits = 8 if kind == "pred" else int(re.findall(r"\d+", kind)[0])
    return math.prod(int(n) for n in shape.split(",") if n) * bits // 8
