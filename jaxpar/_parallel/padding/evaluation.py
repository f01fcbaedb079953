"""evaluation: the program for the most rows, run on fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import JaxprEqn, Literal, bound, jaxpr_as_fun, opened, part
from .analysis import EquationPlan, Plan, Table
from .derivatives import moves
from .rows import masked, repeated


class Padded:
    """A plan as a function of operands of the largest size, with any padding; results have zeros there."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def __call__(self, choice: jax.Array, operands: Sequence[Any]) -> list[Any]:
        """Run the plan; `choice` selects this replica's entry of the plan's sizes."""
        plan = self.plan
        b, n = plan.sizes[0], jnp.array(plan.sizes, jnp.int32)[choice]
        filled = [
            x if r is None else repeated(x, r, b, n) for x, r in zip(operands, plan.operand_rows, strict=True)
        ]
        out = _evaluate(plan, choice, n, filled)
        # The mask also keeps cotangents of the padding out of the backward pass.
        return [y if r is None else masked(y, r, b, n, 0) for y, r in zip(out, plan.result_rows, strict=True)]


def _evaluate(plan: Plan, choice: jax.Array, n: jax.Array, operands: Sequence[Any]) -> list[Any]:
    """Run a program whose operands have their padding filled; unchanged equations run many at a time."""
    jaxpr, _ = opened(plan.program)
    values = dict(zip(jaxpr.invars, operands, strict=True))
    values |= {v: _chosen(t, v, choice) for v, t in zip(jaxpr.constvars, plan.consts, strict=True)}
    read = {v for eqn in [*jaxpr.eqns] for v in eqn.invars if not isinstance(v, Literal)}
    read |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}

    def value(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else values[v]

    for step, eqns in _groups(plan):
        outvars = [v for eqn in eqns for v in eqn.outvars]
        if step is None:
            live = [v for v in outvars if v in read]
            invars = dict.fromkeys(v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))
            available = [v for v in invars if v in values]
            out = jaxpr_as_fun(part(jaxpr, eqns, available, live))(*map(value, available))
            values |= dict(zip(live, out, strict=True))
        else:
            inputs = list(map(value, eqns[0].invars))
            values |= dict(zip(outvars, _run(plan, step, eqns[0], choice, n, inputs), strict=True))
    return list(map(value, jaxpr.outvars))


def _groups(plan: Plan) -> Iterator[tuple[EquationPlan | None, list[JaxprEqn]]]:
    """Yield the equations in order: a changed one alone with its changes, unchanged ones together."""
    plain: list[JaxprEqn] = []
    for i, eqn in enumerate(opened(plan.program)[0].eqns):
        if i not in plan.steps:
            plain.append(eqn)
            continue
        if plain:
            yield None, plain
            plain = []
        yield plan.steps[i], [eqn]
    if plain:
        yield None, plain


def _run(
    plan: Plan, step: EquationPlan, eqn: JaxprEqn, choice: jax.Array, n: jax.Array, operands: list[Any]
) -> Sequence[Any]:
    for i, table in step.tables:
        operands[i] = _chosen(table, eqn.invars[i], choice)
    for i, rows, neutral in step.masks:
        operands[i] = masked(operands[i], rows, plan.sizes[0], n, neutral)
    if step.inner is None:
        return bound(eqn, operands)
    if step.derivative is None:
        return _evaluate(step.inner, choice, n, operands)
    return _with_rule(step.inner, step.derivative)(choice, n, *operands)


def _with_rule(inner: Plan, derivative: Plan) -> Any:
    m = len(inner.result_rows)

    @jax.custom_jvp
    def f(choice: jax.Array, n: jax.Array, *operands: Any) -> list[Any]:
        return _evaluate(inner, choice, n, operands)

    def rule(primals: Any, tangents: Any) -> Any:
        choice, n, *operands = primals
        moving = [t for t in tangents[2:] if t.dtype != jax.dtypes.float0]
        values = _evaluate(derivative, choice, n, [*operands, *moving])
        out, derivatives = values[:m], iter(values[m:])
        # JAX requires tangents of type float0 for results that have no derivative.
        return out, [next(derivatives) if moves(y) else np.zeros(y.shape, jax.dtypes.float0) for y in out]

    f.defjvp(rule)
    return f


def _chosen(table: Table, variable: Any, choice: jax.Array) -> Any:
    # One array that all programs share, such as a closed-over weight, is not copied once per number of rows.
    if all(value is table[0] for value in table):
        return table[0]
    return jnp.stack([jnp.asarray(value, variable.aval.dtype) for value in table])[choice]
