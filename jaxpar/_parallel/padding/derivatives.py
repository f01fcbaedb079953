"""derivatives: the programs of functions' own derivative rules, which may not treat every row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._upstream import ClosedJaxpr, JaxprEqn, bound


def moves(aval: Any) -> bool:
    """Whether it has a derivative."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _shapes(variables: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]


def _among(eqn: JaxprEqn, operands: Sequence[Any]) -> tuple[list[Any], Callable[..., list[Any]]]:
    """The operands that have derivatives, and the equation as a function of them."""
    at = [i for i, v in enumerate(eqn.invars) if moves(v.aval)]

    def of(*moved: Any) -> list[Any]:
        full = list(operands)
        for i, x in zip(at, moved, strict=True):
            full[i] = x
        return list(bound(eqn, full))

    return [operands[i] for i in at], of


def tangents(eqns: Sequence[JaxprEqn]) -> list[ClosedJaxpr]:
    """For each equation: its results, then the derivatives of those that have any."""

    def program(eqn: JaxprEqn) -> ClosedJaxpr:
        n = len(eqn.invars)

        def both(*inputs: Any) -> list[Any]:
            moving, of = _among(eqn, inputs[:n])
            out, derivatives = jax.jvp(of, moving, list(inputs[n:]))
            return [*out, *(d for y, d in zip(out, derivatives, strict=True) if moves(y))]

        moving = [v for v in eqn.invars if moves(v.aval)]
        return jax.make_jaxpr(both)(*_shapes([*eqn.invars, *moving]))

    return list(map(program, eqns))


def cotangents(eqns: Sequence[JaxprEqn]) -> list[ClosedJaxpr]:
    """For each equation: the cotangents of its operands."""

    def program(eqn: JaxprEqn) -> ClosedJaxpr:
        n = len(eqn.invars)

        def back(*inputs: Any) -> list[Any]:
            moving, of = _among(eqn, inputs[:n])

            def floats(*moved: Any) -> list[Any]:
                return [y for y in of(*moved) if moves(y)]

            return list(jax.vjp(floats, *moving)[1](list(inputs[n:])))

        results = [v for v in eqn.outvars if moves(v.aval)]
        return jax.make_jaxpr(back)(*_shapes([*eqn.invars, *results]))

    return list(map(program, eqns))
