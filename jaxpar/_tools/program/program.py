"""`program`: is a compiled training step right on all devices?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..estimate.hlo import read
from .alone import with_scale
from .arguments import Step, StepArray, compiled_step
from .interpreter import Interpreter
from .judge import Interpreted, Judge
from .report import ProgramReport
from .source import Sources
from .values import REPEATED, Dependence, Fact, Shares, labels_of, leaves


def program(
    step: Any,
    *args: Any,
    batch: Sequence[int | str] | None = None,
    sharded: str = "",
    local: str = "batch_stats",
    alone: tuple[Any, tuple] | None = None,
    **kwargs: Any,
) -> ProgramReport:
    """Judge a compiled training step: does it reduce every gradient exactly once?

    The step is lowered and compiled for the devices of its arguments, which may be a `jaxpar.topology`'s, and
    the program's text is interpreted. Nothing runs, but with `alone`.

    >>> import jax, jax.numpy as jnp, jaxpar, optax
    >>> from flax import nnx
    >>> net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    >>> optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    >>> step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    >>> jaxpar.program(step, jax.ShapeDtypeStruct((64, 3), "float32")).verdict
    'right'

    Args:
      step: a `train_step`, or a function, as it is or under `jax.jit`, `jax.shard_map` or `jax.pmap`.
      args, kwargs: its arguments, as arrays or as `jax.ShapeDtypeStruct`s with shardings.
      batch: numbers or keywords of the arguments with rows. Left out, they are those that no result replaces
        and that are divided between devices.
      sharded: a regular expression; arrays of the state whose path it matches must be divided.
      local: a regular expression; arrays of the state whose path it matches may be a device's own.
      alone: the same step for one device and its arguments, whose rows are all of the batch. Both then run
        on drawn numbers, which shows a mean in place of a sum.

    Returns:
      A ProgramReport. What "right" proves, and what it does not, is in docs/program.md.

    Raises:
      What the step raises when it is traced. ValueError: `alone` with other rows. TypeError: `alone` with a
      `train_step`.

    torch counterpart: none.
    """
    compiled = compiled_step(step, args, kwargs, batch)
    report = judged(compiled, sharded, local)
    return report if alone is None else with_scale(report, step, (args, kwargs), compiled, alone)


def judged(step: Step, sharded: str = "", local: str = "") -> ProgramReport:
    shares = Shares(_own(step))
    counts = {n for a in step.batch for n in _row_counts(step.arguments[a])}
    arguments = [_argument(step, shares, n, local) for n in step.parameters]

    def interpreted(text: str) -> Interpreted:
        interpreter = Interpreter(read(text), shares, frozenset(counts))
        result = interpreter.run(arguments)
        # A program of which nothing is known returns one value.
        values = leaves(result) if isinstance(result, tuple) else [result] * len(step.results)
        return Interpreted(interpreter, Sources(text), values)

    program = interpreted(step.text)
    doubtful = any(m.kind in REPEATED for v in program.values for m in v.marks)
    sums = interpreted(step.unsimplified()) if doubtful else program
    return Judge(step, shares, program, sums, sharded, local).report()


def _own(step: Step) -> list[int]:
    """The number of each device's share of the batch: devices that hold the same rows have one share."""
    parts = [_row_parts(step.arguments[n]) for n in sorted(step.batch)]
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(tuple(p[d] for p in parts), len(numbers)) for d in range(step.devices)]


def _row_parts(array: StepArray) -> list[Any]:
    """What each device holds of the rows; of an array whose first axis is whole, of all axes."""
    first = [part[:1] for part in array.part]
    return first if len(set(first)) > 1 else list(array.part)


def _row_counts(array: StepArray) -> list[int]:
    """The lengths that an axis of a device's rows may have: the first axis's, and the first two's product."""
    sizes = array.part_shape
    return [n for n in (*sizes[:1], sizes[0] * sizes[1] if len(sizes) > 1 else 0) if n > 1]


def _argument(step: Step, shares: Shares, number: int, local: str) -> Fact:
    array = step.arguments[number]
    replaced = number in step.state.values()
    if replaced and (step.copies or array.divided) and local and re.search(local, array.path):
        return _local(shares, array)
    if step.copies and replaced:
        return shares.free
    labels = labels_of(list(array.part))
    if number not in step.batch or not array.divided:
        return Fact(labels, labels, shares.nothing, slices=array.slices if replaced else frozenset())
    # What devices of one share hold along other axes is a function of the share: a different slice.
    rowwise = _row_parts(array) != list(array.part) or all(len(part) == 1 for part in array.part)
    form = labels_of([part[1:] for part in array.part]) if rowwise else shares.alike
    return Fact(labels, form, shares.interned(1 << k for k in shares.of_device), Dependence.LOCAL, batch=True)


def _local(shares: Shares, array: StepArray) -> Fact:
    """Return the value of state that is each device's own: a function of its rows, as of all steps before."""
    devices = list(zip(shares.of_device, array.part, strict=True))
    orders: dict[int, list[Any]] = {}
    for share, part in devices:
        orders.setdefault(share, [])
        if part not in orders[share]:
            orders[share].append(part)
    same = labels_of(devices)
    form = labels_of([orders[share].index(part) for share, part in devices])
    return Fact(same, form, shares.interned(1 << k for k in shares.of_device), Dependence.LOCAL)
