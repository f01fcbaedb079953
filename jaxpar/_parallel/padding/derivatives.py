"""derivatives: the programs of functions' own derivative rules, which may not treat every row by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._upstream import ClosedJaxpr, JaxprEqn, bound


def moves(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _shapes(variables: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]


Operation = Callable[[Sequence[Any]], Sequence[Any]]


def _moving(eqn: JaxprEqn) -> list[int]:
    return [i for i, v in enumerate(eqn.invars) if moves(v.aval)]


def _among(f: Operation, operands: Sequence[Any], moving: Sequence[int]) -> Callable[..., list[Any]]:
    def of(*moved: Any) -> list[Any]:
        full = list(operands)
        for i, x in zip(moving, moved, strict=True):
            full[i] = x
        return list(f(full))

    return of


def with_tangents(f: Operation, n: int, moving: Sequence[int]) -> Callable[..., list[Any]]:
    """Return a function of f's n operands and the moving ones' tangents: f's results, then derivatives."""

    def both(*inputs: Any) -> list[Any]:
        of = _among(f, inputs[:n], moving)
        out, derivatives = jax.jvp(of, [inputs[i] for i in moving], list(inputs[n:]))
        return [*out, *(d for y, d in zip(out, derivatives, strict=True) if moves(y))]

    return both


def tangents(eqns: Sequence[JaxprEqn]) -> list[ClosedJaxpr]:
    """For each equation: its results, then the derivatives of those that have any."""

    def program(eqn: JaxprEqn) -> ClosedJaxpr:
        moving = _moving(eqn)
        both = with_tangents(functools.partial(bound, eqn), len(eqn.invars), moving)
        return jax.make_jaxpr(both)(*_shapes([*eqn.invars, *(eqn.invars[i] for i in moving)]))

    return list(map(program, eqns))


def cotangents(eqns: Sequence[JaxprEqn]) -> list[ClosedJaxpr]:
    """For each equation: the cotangents of its operands."""

    def program(eqn: JaxprEqn) -> ClosedJaxpr:
        n, moving = len(eqn.invars), _moving(eqn)

        def back(*inputs: Any) -> list[Any]:
            of = _among(functools.partial(bound, eqn), inputs[:n], moving)

            def floats(*moved: Any) -> list[Any]:
                return [y for y in of(*moved) if moves(y)]

            return list(jax.vjp(floats, *(inputs[i] for i in moving))[1](list(inputs[n:])))

        results = [v for v in eqn.outvars if moves(v.aval)]
        return jax.make_jaxpr(back)(*_shapes([*eqn.invars, *results]))

    return list(map(program, eqns))
