"""Run a JAX program with chosen operations in other types.

    jax_types ─► jaxpr with operations ─► _TypedProgram: the equations again, some with other types

An operation that is changed rounds what it takes and what it returns to the types of the other framework, and
computes in float32 in between, as torch's kernels do. A cast before the operation is undone: its input is the
value before the cast. Everything else keeps the type that the program has there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    called,
    has_own_jvp,
    jaxpr_as_fun,
    opened,
    part,
    scan_counts,
)
from .._runs.operation_types import OperationType
from .jax_types import CAST, MOVES, JaxOperation, Planned, TypeReader, dtype_of, is_float

R = TypeVar("R")


class JaxTypes:
    """The types of one program; `changes` are the inputs' and outputs' types of operations, by number.

    With `memory`, a type, an optimizer's update rounds nothing to fewer bits.
    """

    def __init__(
        self, changes: Mapping[int, tuple[str, str]] | None = None, memory: str | None = None
    ) -> None:
        self.changes, self.memory = changes or {}, memory
        self.operations: tuple[OperationType, ...] = ()

    def __call__(self, function: Callable[..., R]) -> Callable[..., R]:
        def typed(*args: Any) -> R:
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
            plan = self._planned(program)
            outputs = _TypedProgram(self.changes).program(program, plan, jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

        return typed

    def update(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return an optimizer's update that keeps `memory`'s bits."""
        if self.memory is None:
            return function

        def exact(*args: Any) -> R:
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
            plan = TypeReader().program(program)
            outputs = _TypedProgram({}, rounds=False).program(program, plan, jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

        return exact

    def read(self, function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> None:
        self._planned(jax.make_jaxpr(lambda: function(*args, **kwargs))())

    def _planned(self, program: Any) -> list[Planned]:
        reader = TypeReader()
        plan = reader.program(program)
        self.operations = tuple(
            OperationType(x.kind, x.inputs, x.output, x.where, x.precision) for x in reader.operations
        )
        return plan


@dataclasses.dataclass(frozen=True)
class _Held:
    """A value, and the type to which an operation that is not `operation` takes it rounded."""

    value: Any
    to: Any = None
    operation: JaxOperation | None = None
    is_cast: bool = False

    @property
    def rounded(self) -> Any:
        return self.value if self.to is None else self.value.astype(self.to)


class _TypedProgram:
    def __init__(self, changes: Mapping[int, tuple[str, str]], rounds: bool = True):
        self.changes, self.rounds = changes, rounds

    def changed(self, operation: JaxOperation | None) -> tuple[Any, Any] | None:
        change = self.changes.get(operation.index) if operation else None
        return None if change is None else (jnp.dtype(change[0]), jnp.dtype(change[1]))

    def changes_in(self, planned: Planned) -> bool:
        if self.changed(planned.operation):
            return True
        if not self.rounds and planned.operation is not None and planned.operation.kind == "rounding":
            return True
        return any(self.changes_in(x) for _, plan in planned.programs for x in plan)

    def program(self, program: Any, plan: list[Planned], args: Sequence[Any]) -> list[Any]:
        return [x.rounded for x in self._held(program, plan, [_Held(x) for x in args])]

    def _held(self, program: Any, plan: list[Planned], args: Sequence[_Held]) -> list[_Held]:
        jaxpr, consts = opened(program)
        env: dict[Var, _Held] = dict(zip(jaxpr.constvars, map(_Held, consts), strict=True))
        env |= dict(zip(jaxpr.invars, args, strict=True))

        def value_of(x: Any) -> _Held:
            return _Held(_literal(x)) if isinstance(x, Literal) else env[x]

        for planned in plan:
            inputs = [value_of(x) for x in planned.equation.invars]
            outputs = self._equation(planned, inputs, jaxpr)
            env |= dict(zip(planned.equation.outvars, outputs, strict=True))
        return [value_of(x) for x in jaxpr.outvars]

    def _equation(self, planned: Planned, inputs: list[_Held], jaxpr: Jaxpr) -> list[_Held]:
        equation, name = planned.equation, planned.equation.primitive.name
        passes = called(equation) is not None and not has_own_jvp(equation)
        unusual = [_is_unusual(x, like) for x, like in zip(inputs, equation.invars, strict=True)]
        if planned.programs and (self.changes_in(planned) or (passes and any(unusual))):
            return self._nested(planned, inputs)
        change = self.changed(planned.operation)
        if name in MOVES and unusual[0]:
            moved = equation.primitive.bind(*(x.value for x in inputs), **equation.params)
            return [dataclasses.replace(inputs[0], value=moved)]
        if planned.operation and planned.operation.kind == "rounding":
            if change or not self.rounds:
                return [_Held(inputs[0].rounded)]
            return [_Held(inputs[0].value, dtype_of(equation.outvars[0]), is_cast=True)]
        if change and planned.operation:
            return [self._changed(planned.operation, equation, inputs, change)]
        if name == CAST and is_float(equation.invars[0].aval):
            return [_Held(inputs[0].rounded.astype(equation.params["new_dtype"]))]
        values = [
            x.rounded.astype(dtype_of(v)) if is_float(v.aval) else x.value
            for x, v in zip(inputs, equation.invars, strict=True)
        ]
        return [_Held(x) for x in _bound(equation, values, jaxpr)]

    def _changed(
        self, operation: JaxOperation, equation: JaxprEqn, inputs: list[_Held], change: tuple[Any, Any]
    ) -> _Held:
        wide = jnp.promote_types(change[0], jnp.float32)

        def taken(x: _Held, like: Any) -> Any:
            if not is_float(like.aval):
                return x.value
            if x.operation is operation:
                return x.value
            before = x.value if x.is_cast else x.rounded
            return before.astype(change[0]).astype(wide)

        values = [
            np.asarray(_written(like), wide)
            if isinstance(like, Literal) and is_float(like.aval)
            else taken(x, like)
            for x, like in zip(inputs, equation.invars, strict=True)
        ]
        to = None if change[1] == wide else change[1]
        if equation.primitive.name == CAST:
            return _Held(values[0].astype(wide), to, operation)
        params = dict(equation.params)
        if params.get("preferred_element_type") is not None:
            params["preferred_element_type"] = wide
        return _Held(equation.primitive.bind(*values, **params), to, operation)

    def _nested(self, planned: Planned, inputs: list[_Held]) -> list[_Held]:
        equation = planned.equation
        if equation.primitive.name == "scan":
            return self._scanned(planned, [_Held(x.rounded) for x in inputs])
        if equation.primitive.name == "cond":
            branches = [
                lambda *xs, program=program, plan=plan: [
                    x.astype(dtype_of(v))
                    for x, v in zip(self.program(program, plan, xs), equation.outvars, strict=True)
                ]
                for program, plan in planned.programs
            ]
            index, *operands = [x.rounded for x in inputs]
            return [_Held(x) for x in jax.lax.switch(index, branches, *operands)]
        ((program, plan),) = planned.programs
        return self._held(program, plan, inputs)

    def _scanned(self, planned: Planned, inputs: list[_Held]) -> list[_Held]:
        params = planned.equation.params
        consts, carry = scan_counts(planned.equation)
        ((program, plan),) = planned.programs
        values = [x.value for x in inputs]

        def body(state: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            outputs = self.program(program, plan, [*values[:consts], *state, *xs])
            after = [x.astype(s.dtype) for x, s in zip(outputs[:carry], state, strict=True)]
            return after, outputs[carry:]

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        state, ys = jax.lax.scan(body, values[consts : consts + carry], values[consts + carry :], **options)
        return [_Held(x) for x in (*state, *ys)]


def _is_unusual(x: _Held, like: Any) -> bool:
    """Return whether a value is not just what the program has there."""
    return is_float(like.aval) and (
        x.to is not None or x.operation is not None or x.value.dtype != dtype_of(like)
    )


def _bound(equation: JaxprEqn, values: Sequence[Any], jaxpr: Jaxpr) -> list[Any]:
    pairs = {x: v for x, v in zip(equation.invars, values, strict=True) if isinstance(x, Var)}
    return jaxpr_as_fun(part(jaxpr, [equation], list(pairs), equation.outvars))(*pairs.values())


def _literal(x: Literal) -> Any:
    return np.asarray(x.val, dtype_of(x)) if is_float(x.aval) else x.val


def _written(x: Literal) -> float:
    """Return the number that a literal was written as: 1.7 for bfloat16's 1.703125."""
    dtype, value = np.dtype(dtype_of(x)), float(x.val)
    short = (float(f"{value:.{digits}g}") for digits in range(1, 5))
    return next((number for number in short if float(np.asarray(number, dtype)) == value), value)
