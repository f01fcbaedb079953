"""Choices: what a JAX program chooses by its numbers, and whether they take one side only.

A `where` whose condition always holds, a bound that no number passes, a branch of `cond`, an epsilon that is
too small to show: no comparison sees an error there. The operands become results, and are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._upstream import ClosedJaxpr, JaxprEqn, Literal, Var, called, jaxpr_as_fun, opened, rewritten
from .constants import frames_of, libraries, line_of

VISIBLE = 1e-7  # the part of a number that a constant is, of which a hundredth would still be seen


def _sum(x: Any, y: Any) -> list[Any]:
    """A constant shows only if it is large enough to change a number."""
    if jnp.ndim(x) == jnp.ndim(y) or not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        return []
    constant, array = (x, y) if jnp.ndim(x) == 0 else (y, x)
    # A 0 plus a constant is not 0, which shows only if it is divided by: zeros among numbers do not count.
    return [((abs(constant) > VISIBLE * abs(array)) & (array != 0)) | (constant == 0) | (array == 0).all()]


def _compared(x: Any, y: Any) -> list[Any]:
    """A bound of a condition shows only if a number is there."""
    if jnp.ndim(x) == jnp.ndim(y) or not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        return []
    constant, array = (x, y) if jnp.ndim(x) == 0 else (y, x)
    return [abs(array - constant) <= VISIBLE * jnp.maximum(abs(constant), VISIBLE)]


def _narrower(x: Any, to: Any) -> list[Any]:
    if to.kind not in "iu" or to.itemsize > 2 or jnp.result_type(x) == jnp.bool_:
        return []
    limits = jnp.iinfo(to)
    return [(x < limits.min) | (x > limits.max)]


SIDES: dict[str, Callable[..., list[Any]]] = {
    "select_n": lambda which, *cases: [which == i for i in range(len(cases))],
    "cond": lambda index, *operands: [],
    "max": lambda x, y: [x > y, x < y],
    "min": lambda x, y: [x > y, x < y],
    "clamp": lambda low, x, high: [x < low, x > high],
    "abs": lambda x: [x < 0],
    "rem": lambda x, y: [abs(x) >= abs(y)],
    "add": _sum,
    **dict.fromkeys(("gt", "ge", "lt", "le"), _compared),
}
"""For each side of an operation, which elements take it."""
CAST = "convert_element_type"
NAMES = {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "select_n": "where",
    "add": "a constant that is added",
    CAST: "a cast to a narrow integer",
}
OF_JAX = (
    *("where", "_where", "clip", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "hard_tanh"),
    *("hard_sigmoid", "hard_silu", "hard_swish", "remainder", "squareplus", "maximum", "minimum"),
)
"""JAX's functions with bounds. What its others choose by themselves is not the model's."""
ELSEWHERE = (
    *("_src/numpy/indexing.py", "_src/ops/special.py", "_src/numpy/reductions.py"),
    *("normalization.py", "_batch_norm.py", "_statistics/moments.py"),
)
"""Files with choices of their own: negative indices, infinities, a variance that rounds below 0."""


@dataclasses.dataclass
class Choices:
    """The names of what one traced program chooses; `reached` has the results of its runs."""

    names: list[str] = dataclasses.field(default_factory=list)
    reached: dict[str, bool] = dataclasses.field(default_factory=dict)

    def run(self, program: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run a program; return its results, and for each choice whether an element takes it."""
        watched = _watched(program)
        results = jaxpr_as_fun(_with_operands(program, watched))(*arguments)
        count = len(opened(program)[0].outvars)
        return results[:count], [*self._flags(watched, iter(results[count:]), "")]

    def add(self, flags: Any) -> None:
        for name, reached in zip(self.names, flags, strict=True):
            self.reached[name] = self.reached.get(name, False) or bool(reached)

    def one_sided(self) -> list[str]:
        """Return the operations of which a side was never reached, with their lines."""
        return list(
            dict.fromkeys(name.partition("#")[0] for name, reached in self.reached.items() if not reached)
        )

    def _flags(self, watched: Sequence[JaxprEqn], values: Iterator[Any], line: str) -> Iterator[Any]:
        for equation in watched:
            operands = [next(values) if isinstance(x, Var) else x.val for x in equation.invars]
            name, line_here = equation.primitive.name, line or line_of(equation, "the model")
            if program := called(equation):
                of_jax = _is_bounding(equation)
                inner = _watched(program, bool(line) or of_jax)
                if inner:
                    results = jaxpr_as_fun(_closed(_with_operands(program, inner)))(*operands)
                    inputs = iter(results[len(opened(program)[0].outvars) :])
                    yield from self._flags(inner, inputs, line_here if of_jax else line)
                continue
            if name == CAST:
                sides = _narrower(operands[0], equation.params["new_dtype"])
            elif name == "cond":
                sides = [operands[0] == i for i in range(len(equation.params["branches"]))]
            else:
                sides = SIDES[name](*operands)
            for i, side in enumerate(sides):
                self.names.append(f"{NAMES.get(name, name)} in {line_here}#{len(self.names)}.{i}")
                yield jnp.any(side)


def _closed(program: Any) -> Any:
    return program if hasattr(program, "consts") else ClosedJaxpr(program, ())


def _watched(program: Any, in_jax: bool = False) -> list[JaxprEqn]:
    """Return the operations of a program, or of a function of JAX with bounds, that choose."""
    return [equation for equation in opened(program)[0].eqns if _is_watched(equation, in_jax)]


def _is_watched(equation: JaxprEqn, in_jax: bool) -> bool:
    # JAX traces its functions once, so the lines inside lead to their first caller.
    if not in_jax and any(frame.file_name.endswith(ELSEWHERE) for frame in frames_of(equation)):
        return False
    if (program := called(equation)) is not None:
        name = equation.params.get("name")
        is_librarys = name is not None and str(name) not in OF_JAX and _is_of_jax(program)
        return not is_librarys and bool(_watched(program, in_jax or _is_bounding(equation)))
    if equation.primitive.name == CAST:
        return equation.params["new_dtype"].kind in "iu"
    if equation.primitive.name not in SIDES or not _is_ordered(equation.invars[0]):
        return False
    # A maximum with minus infinity, as in a softmax, always takes the other operand.
    return not any(isinstance(x, Literal) and np.isinf(x.val).any() for x in equation.invars)


def _is_bounding(equation: JaxprEqn) -> bool:
    """Return whether an equation calls a function of JAX with bounds."""
    return str(equation.params.get("name")) in OF_JAX or equation.primitive.name == "custom_jvp_call"


def _is_ordered(x: Var | Literal) -> bool:
    return not jnp.issubdtype(getattr(x.aval, "dtype", jnp.complexfloating), jnp.complexfloating)


def _is_of_jax(program: Any) -> bool:
    information = getattr(opened(program)[0], "debug_info", None)
    return str(getattr(information, "func_filename", "") or "").startswith(libraries())


def _with_operands(program: Any, equations: Sequence[JaxprEqn]) -> Any:
    jaxpr, _ = opened(program)
    operands = [x for equation in equations for x in equation.invars if isinstance(x, Var)]
    return rewritten(program, outvars=[*jaxpr.outvars, *operands])
