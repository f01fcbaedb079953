"""What a step is, in numbers: bytes on a device, operations, bytes that devices exchange.

Two programs are compiled and none is run. One replica's forward and backward pass has the
activations as its temporary bytes. The step of two devices has the all-reduces that any number of
devices would have, because each device holds all parameters; with one device to compile for, these
are counted from the shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..._devices import devices as _devices
from ..._parallel.placement import Placement
from ..._typing import REPLICA
from ..compiled import Program, is_float, placed, size
from .matrices import products
from .step import Step

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


def count(step: Step) -> tuple[Memory, Work, Traffic]:
    """Compiles and counts."""
    here = SingleDeviceSharding(_first())
    parts = placed((step.params, step.buffers, step.batch), here)
    forward = Program(step.differentiate, *parts, function="estimate")
    whole = _whole(step)
    memory = Memory(
        parameters=size(step.params),
        buffers=size(step.buffers),
        optimizer=size(step.optimizer),
        gradients=size(step.params),
        activations=forward.temporary,
        batch=size(step.batch),
        compiled_step=whole.everything,
    )
    # A loop's body counts once in XLA's analysis; matrix products are counted with its turns.
    matrices = products(whole.jaxpr)
    work = Work(
        flops=max(whole.flops, matrices.flops),
        bytes=max(whole.accessed, matrices.bytes),
        kind=matrices.kind or "float32",
    )
    return memory, work, _traffic(step, whole)


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


def _whole(step: Step) -> Program:
    devices = [d for d in _devices.devices() if d.device_kind == _first().device_kind]
    placement = Placement(tuple(devices[:2])) if len(devices) > 1 else None
    everywhere: Any = placement.replicated if placement else SingleDeviceSharding(_first())
    cut = NamedSharding(placement.mesh, PartitionSpec(REPLICA)) if placement else everywhere
    params, state, buffers = placed((step.params, step.optimizer, step.buffers), everywhere)
    batch = placed(step.rows_of(2 if placement else 1), cut)
    train = functools.partial(step.train, placement)
    return Program(train, params, state, buffers, batch, donate=(0, 1, 2), function="estimate")


def _traffic(step: Step, whole: Program) -> Traffic:
    found = all_reduces(whole.text)
    if found:
        return Traffic(len(found), sum(found), COMPILED)
    exchanged = [x for x in jax.tree.leaves((step.params, step.buffers)) if is_float(x)]
    kinds = {x.dtype for x in exchanged}
    return Traffic(max(len(kinds), 1), size(exchanged), SHAPES)


def _first() -> jax.Device:
    return _devices.devices()[0]
