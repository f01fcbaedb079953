"""The place of a difference in JAX code that calls no layers: torch's first array that no line computes.

Arrays are compared by their sorted numbers, so neither side's layout matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, bound, called, opened, scan_counts
from .._sides.constants import libraries, line_of
from .._sides.flax_float64 import in_float64
from .._sides.flax_side import FlaxSide
from .._sides.step_data import Batch
from .._sides.torch_side import to_numpy
from .aligned_forward import AlignedForward
from .array_changes import EQUAL, relative_error
from .torch_trace import Op, tensors

LONGEST = 64
"""Scans of more turns, those inside of scans multiplied, are not taken apart: the program has every turn."""
MOVING = {"reshape", "transpose", "squeeze", "rev", "copy"}
"""Primitives whose results have their operand's numbers, which are kept already."""

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


def values_of(
    side: FlaxSide, batch: Batch, masks: tuple[np.ndarray, ...], sizes: Collection[int]
) -> list[tuple[str, np.ndarray]]:
    """Return the user's line (`net.py:12`) and result of every equation of the forward pass, in float64.

    Only floating arrays of as many elements as `sizes` has are kept.
    """
    lines: list[str] = []

    def forward(parameters: Any, extra_state: Any, call: Any, masks: Any) -> Any:
        return side.leaves(side.net.apply(parameters, extra_state, call, masks)[0])

    def run(*arguments: Any) -> list[jax.Array]:
        values = _Values(sizes)
        values.run(jax.make_jaxpr(forward)(*arguments), jax.tree.leaves(arguments), "")
        lines[:] = values.lines
        return values.arrays

    arrays = jax.jit(in_float64(run))(side.parameters, side.extra_state, side.call(batch), masks)
    return [(line, np.asarray(x)) for line, x in zip(lines, arrays, strict=True)]


class _Values:
    """Evaluates a program, nested programs and short scans included, and keeps results with their lines."""

    def __init__(self, sizes: Collection[int]):
        self.sizes, self.turns = sizes, 1
        self.lines: list[str] = []
        self.arrays: list[jax.Array] = []

    def run(self, program: ClosedJaxpr | Jaxpr, operands: Sequence[Any], line: str) -> list[Any]:
        """Return the program's results; `line` is the user's line of a program that a library wrote."""
        jaxpr, consts = opened(program)
        numbers: dict[Any, Any] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True)
        )

        def read(x: Any) -> Any:
            return x.val if isinstance(x, Literal) else numbers[x]

        for equation in jaxpr.eqns:
            line_here = line or line_of(equation, "")
            results = self._results(equation, [read(x) for x in equation.invars], line_here)
            numbers |= zip(equation.outvars, results, strict=True)
            for x in results if line_here and equation.primitive.name not in MOVING else ():
                if jnp.issubdtype(x.dtype, jnp.floating) and x.size in self.sizes:
                    self.lines.append(line_here)
                    self.arrays.append(x)
        return [read(x) for x in jaxpr.outvars]

    def _results(self, equation: JaxprEqn, operands: list[Any], line: str) -> Sequence[Any]:
        if equation.primitive.name == "scan" and self.turns * equation.params["length"] <= LONGEST:
            return self._turns(equation, operands)
        program = called(equation)
        if program is None:
            return bound(equation, operands)
        # JAX traces a library's function once, and its equations have the line of the first call.
        written_in = getattr(opened(program)[0].debug_info, "func_src_info", None) or ""
        from_library = any(folder in written_in for folder in libraries())
        return self.run(program, operands, line if from_library else "")

    def _turns(self, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        constants, carried = scan_counts(equation)
        fixed, carry = operands[:constants], operands[constants : constants + carried]
        rows, length = operands[constants + carried :], equation.params["length"]
        order = range(length)[:: -1 if equation.params["reverse"] else 1]
        outputs, enclosing = [], self.turns
        self.turns *= length
        for i in order:
            results = self.run(equation.params["jaxpr"], [*fixed, *carry, *(x[i] for x in rows)], "")
            carry = results[:carried]
            outputs.append(results[carried:])
        self.turns = enclosing
        in_order = outputs[:: -1 if equation.params["reverse"] else 1]
        return [*carry, *(jnp.stack(column) for column in zip(*in_order, strict=True))]
