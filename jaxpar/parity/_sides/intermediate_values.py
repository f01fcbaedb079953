"""The arrays that each line of a JAX model computes, for models that call no layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, bound, called, opened, scan_counts
from .constants import libraries, line_of
from .flax_float64 import in_float64
from .step_data import Batch

if TYPE_CHECKING:
    from .flax_side import FlaxSide

LONGEST = 64
"""Scans of more turns, those inside of scans multiplied, are not taken apart: the program has every turn."""
MOVING = {"reshape", "transpose", "squeeze", "rev", "copy"}
"""Primitives whose results have their operand's numbers, which are kept already."""


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
