"""Read the type of each operation of a JAX program: equations that a library computes in one call are one."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

import jax.numpy as jnp

from ..._upstream import JaxprEqn, Var, called, opened
from .._runs.operation_types import FLOATS
from .constants import frames_of, libraries

R = TypeVar("R")
CAST = "convert_element_type"
MOVES = (
    *("reshape", "transpose", "broadcast_in_dim", "slice", "squeeze", "expand_dims", "copy", "rev"),
    *("stop_gradient", "dynamic_slice"),
)
LIBRARY = (
    ("softmax", r"_?softmax(_deprecated)?"),
    ("loss", r"log_softmax|logsumexp|.*cross_entropy.*|.*_loss|nll_loss|.*_error"),
    ("norm", r".*Norm\.__call__|_compute_stats|_normalize|(layer|batch|group|rms|instance)_norm"),
    ("activation", r"gelu|relu6?|silu|swish|sigmoid|log_sigmoid|tanh|elu|leaky_relu|softplus|hard_.*|mish"),
    ("embedding", r"Embed(ding)?\.__call__|_?take|embedding"),
    ("convolution", r"Conv(Transpose|\dd)?\.__call__"),
    ("matmul", r"(Linear|Dense|LinearGeneral|DenseGeneral|Einsum)\.__call__|linear"),
    ("mean", r"_?mean|_?var|.*avg_pool\w*"),
)
"""Functions of JAX, Flax, optax and jaxpar whose equations are one operation."""
PRIMITIVES = {
    "dot_general": "matmul",
    "conv_general_dilated": "convolution",
    "gather": "embedding",
    "add": "addition",
    "add_any": "addition",
    "reduce_sum": "sum",
    "tanh": "activation",
    "logistic": "activation",
    "erf": "activation",
    **dict.fromkeys(("mul", "sub", "div", "pow", "integer_pow", "square"), "arithmetic"),
    **dict.fromkeys(("sqrt", "rsqrt", "exp", "log", "neg"), "arithmetic"),
}


@dataclasses.dataclass
class JaxOperation:
    """Equations that are one operation; `index` is its number among those with a type."""

    kind: str
    where: str
    library: bool
    inputs: str = ""
    output: str = ""
    precision: str = ""
    index: int = -1
    is_product: bool = False


@dataclasses.dataclass
class Planned:
    """An equation, its operation, and the plans of the programs that it runs."""

    equation: JaxprEqn
    operation: JaxOperation | None
    programs: tuple[tuple[Any, list[Planned]], ...] = ()


class TypeReader:
    def __init__(self) -> None:
        self.operations: list[JaxOperation] = []
        self.last: JaxOperation | None = None
        self.rounded: dict[Var, Planned] = {}

    def program(self, program: Any, outer: tuple[str, str, bool] = ("", "", False)) -> list[Planned]:
        jaxpr, _ = opened(program)
        plan = [self._equation(equation, outer) for equation in jaxpr.eqns]
        for x in jaxpr.outvars:
            if isinstance(x, Var):
                self._observed(x)
        return plan

    def _equation(self, equation: JaxprEqn, outer: tuple[str, str, bool]) -> Planned:
        # A library's compiled function is traced once: its equations have the line of the first call.
        kind, line, library = outer if outer[2] else classified(equation)
        line = line or outer[1]
        programs = tuple((x, self.program(x, (kind, line, library))) for x in nested(equation))
        planned = Planned(equation, None, programs)
        if programs:
            return planned
        output = equation.outvars[0].aval if equation.outvars else None
        if not is_float(output):
            return planned
        name = equation.primitive.name
        if name in MOVES or (name == CAST and not library):
            self._moved(planned, line)
        elif kind:
            self._joined(planned, JaxOperation(kind, line, library))
        return planned

    def _moved(self, planned: Planned, line: str) -> None:
        equation = planned.equation
        before, after = equation.invars[0], equation.outvars[0]
        if equation.primitive.name in MOVES:
            if isinstance(before, Var) and before in self.rounded:
                self.rounded[after] = self.rounded[before]
        elif is_float(before.aval) and _bits(after.aval) < _bits(before.aval):
            planned.operation = JaxOperation(
                "rounding", line, False, str(dtype_of(before)), str(dtype_of(after))
            )
            self.rounded[after] = planned
        elif isinstance(before, Var) and is_float(before.aval):
            self._observed(before)

    def _observed(self, x: Var) -> None:
        """Count a cast to fewer bits as an operation: no other operation runs in its type."""
        planned = self.rounded.pop(x, None)
        if planned is not None and planned.operation and planned.operation.index < 0:
            self._append(planned.operation)

    def _append(self, operation: JaxOperation) -> None:
        operation.index = len(self.operations)
        self.operations.append(operation)

    def _joined(self, planned: Planned, operation: JaxOperation) -> None:
        """Add the equation to the last operation if a library computes both in one call."""
        equation, last = planned.equation, self.last
        is_product = equation.primitive.name in ("dot_general", "conv_general_dilated")
        is_same = last is not None and (last.kind, last.where) == (operation.kind, operation.where)
        if operation.library and last and is_same and not (is_product and last.is_product):
            operation = last
        else:
            self.last = operation
            self._append(operation)
        planned.operation = operation
        operation.output = str(dtype_of(equation.outvars[0]))
        types = [str(dtype_of(x)) for x in equation.invars if is_float(x.aval)]
        if equation.primitive.name != CAST and types and not operation.inputs:
            operation.inputs = min(types, key=lambda name: FLOATS.get(name, 64))
        operation.is_product |= is_product
        if is_product and operation.kind in ("matmul", "convolution"):
            operation.inputs = min(types, key=lambda name: FLOATS.get(name, 64))
            precision = equation.params.get("precision")
            precision = precision[0] if isinstance(precision, tuple) else precision
            if operation.inputs == "float32":
                operation.precision = "default" if precision is None else str(precision).lower()


def classified(equation: JaxprEqn) -> tuple[str, str, bool]:
    """Return the operation's kind ("" for none), the user's line, and whether it is a library's function."""
    if "transpose(" in str(equation.source_info.name_stack):
        return "", "", False
    kinds: set[str] = set()
    line, by_user = "", True
    for frame in frames_of(equation):
        if not frame.file_name.startswith(libraries()):
            line = f"{frame.file_name.rpartition('/')[2]}:{frame.line_num}"
            break
        name = frame.function_name.rpartition("<locals>.")[2]
        kinds |= {kind for kind, names in LIBRARY if re.fullmatch(names, _short(name))}
        if name == "FlaxSide._loss" or (not kinds and "/optax/" in frame.file_name):
            by_user = False
            break
    # The first of the table: a norm computes a mean, and a cross entropy selects from a log-softmax.
    kind = next((kind for kind, _ in LIBRARY if kind in kinds), "")
    if kind:
        return kind, line, True
    return PRIMITIVES.get(equation.primitive.name, "") if by_user else "", line, False


def _short(name: str) -> str:
    return name if name.endswith("__call__") else name.rpartition(".")[2]


def nested(equation: JaxprEqn) -> list[Any]:
    """Return the programs that an equation runs, of those that can be run with other types inside."""
    program = called(equation)
    if program is not None:
        return [program]
    if equation.primitive.name == "scan":
        return [equation.params["jaxpr"]]
    return list(equation.params["branches"]) if equation.primitive.name == "cond" else []


def is_float(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def dtype_of(x: Any) -> Any:
    return x.aval.dtype


def _bits(aval: Any) -> int:
    return FLOATS.get(str(aval.dtype), 64)
