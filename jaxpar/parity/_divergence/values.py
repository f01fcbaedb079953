"""The place of a difference in JAX code that calls no layers: torch's first array that no line computes.

Arrays are compared by their sorted numbers, so neither side's layout matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .._sides.flax_side import FlaxSide
from .._sides.intermediate_values import values_of
from .._sides.torch_side import to_numpy
from .aligned_forward import AlignedForward
from .array_changes import EQUAL, relative_error
from .torch_trace import Op, tensors

FEWEST = 4
"""Arrays of fewer elements may be equal by chance."""
AROUND = 6
"""How many calls before and after a place may hold its cause: torch and JAX may write one step in several."""


@dataclasses.dataclass(frozen=True)
class ValuePlace:
    """The first call of torch whose result no line of JAX's code computes, nor one that depends on it."""

    op: Op
    line: str  # JAX's, of the last earlier array that both compute; "" without one
    near: Sequence[Op]

    def repeated(self, ops: Sequence[Op]) -> list[Op]:
        """Return the calls whose lines are those near the place: a function may compute several layers."""
        lines = {op.line for op in self.near}
        return [op for op in ops if op.line in lines]


class Sorted:
    """An array's numbers in ascending order, with their sum of squares to tell most arrays apart by."""

    def __init__(self, array: np.ndarray):
        self.numbers = np.sort(array, axis=None)
        self.squares = float(np.square(self.numbers).sum())

    def equals(self, other: Sorted) -> bool:
        close = abs(self.squares - other.squares) <= EQUAL * abs(other.squares)
        return close and relative_error(self.numbers, other.numbers) <= EQUAL


def value_place(forward: AlignedForward) -> ValuePlace | None:
    """Return where JAX's forward pass parts from torch's; None if no array shows it."""
    if not isinstance(forward.candidate, FlaxSide):
        return None
    ops = forward.trace.ops[: forward.trace.model_ops]
    checkable = {op.index: array for op in ops if (array := _sorted(op)) is not None}
    sizes = {array.numbers.size for array in checkable.values()}
    computed: dict[int, list[tuple[str, Sorted]]] = {}
    for line, x in values_of(forward.candidate, forward.batch, forward.observed.masks, sizes):
        if np.isfinite(x).all():
            computed.setdefault(x.size, []).append((line, Sorted(x)))

    lines: dict[int, str] = {}
    for index, array in checkable.items():
        equal = (line for line, other in computed.get(array.numbers.size, ()) if other.equals(array))
        if (first := next(equal, None)) is not None:
            lines[index] = first
    reaching = _reaching(ops, lines)
    for position, op in enumerate(ops):
        if op.index in checkable and op.index not in reaching:
            near = ops[max(0, position - AROUND) : position + AROUND]
            return ValuePlace(op, next(_before(op, ops[:position], lines), ""), near)
    return None


def _sorted(op: Op) -> Sorted | None:
    """Return a call's result if its numbers can identify it: floating, finite, and not all alike."""
    results = tensors(op.result)
    if not results or not results[0].is_floating_point() or results[0].numel() < FEWEST:
        return None
    array = to_numpy(results[0])
    return Sorted(array) if np.isfinite(array).all() and array.min() < array.max() else None


def _reaching(ops: Sequence[Op], lines: dict[int, str]) -> set[int]:
    """Return the calls that JAX computes, and those before them, which a port may write differently."""
    operands: set[int] = set()
    reaching = set()
    for op in reversed(ops):
        if op.index in lines or any(id(x) in operands for x in tensors(op.result)):
            reaching.add(op.index)
            operands |= {id(x) for x in tensors((op.args, op.kwargs))}
    return reaching


def _before(op: Op, earlier: Sequence[Op], lines: dict[int, str]) -> Iterator[str]:
    """Yield JAX's lines of what the call is given, and then of all earlier calls, the latest first."""
    operands = {id(x) for x in tensors((op.args, op.kwargs))}
    sources = [other for other in earlier if any(id(x) in operands for x in tensors(other.result))]
    for other in (*reversed(sources), *reversed(earlier)):
        if other.index in lines:
            yield lines[other.index]
