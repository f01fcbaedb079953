"""analysis: from the programs for all numbers of rows to the one that runs, if rules explain differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..._typing import Shape
from ..._upstream import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, called, has_own_jvp, has_own_vjp, opened
from ..same_program import programs_in, same_program
from .derivatives import cotangents, moves, tangents
from .rows import DependentError, Rows, axis_of, unified
from .rules import SHAPES, Mask, rule_of

Where = Sequence[Rows | None]
Table = tuple[Any, ...]  # the values of one number of the program, one for each number of rows
Tables = tuple[tuple[int, Table], ...]


@dataclasses.dataclass(frozen=True)
class EquationPlan:
    """Changes to one equation of the program."""

    masks: tuple[Mask, ...] = ()  # operands whose padding is overwritten before the equation runs
    tables: Tables = ()  # operands whose number depends on the number of rows
    inner: Plan | None = None  # the program that it calls
    derivative: Plan | None = None  # the program of its own derivative rule


@dataclasses.dataclass(frozen=True)
class Plan:
    """The program for the most rows, and the changes to its equations."""

    program: ClosedJaxpr | Jaxpr
    sizes: tuple[int, ...]  # the numbers of rows, one for each program, the largest first
    consts: tuple[Table, ...]  # for each constant of the program
    steps: dict[int, EquationPlan]  # the changed equations, by number
    operand_rows: tuple[Rows | None, ...]  # where operands have rows
    result_rows: tuple[Rows | None, ...]  # where results have rows

    @property
    def plain(self) -> bool:
        return not self.steps and all(_alike(table) for table in self.consts)

    def rewritten(self, f: Callable[[Any], Any]) -> Plan:
        """Return the same plan for f(program), which has the same number of equations."""

        def step(step: EquationPlan) -> EquationPlan:
            inner, derivative = (p and p.rewritten(f) for p in (step.inner, step.derivative))
            return dataclasses.replace(step, inner=inner, derivative=derivative)

        steps = {i: step(s) for i, s in self.steps.items()}
        return dataclasses.replace(self, program=f(self.program), steps=steps)


def planned(programs: Sequence[ClosedJaxpr]) -> Plan | None:
    """Return a plan that lets the largest program serve all numbers of rows, or None if unproven.

    A mean over rows is a sum, whose padding is masked, and a division by a number from a table:

    >>> import jax.numpy as jnp
    >>> mean = [jax.make_jaxpr(lambda x: x.sum(0) / x.shape[0])(jnp.ones((b, 5))) for b in (3, 1)]
    >>> plan = planned(mean)
    >>> plan.sizes, plan.operand_rows[0].axis, plan.result_rows
    ((3, 1), 0, (None,))
    >>> [mask.neutral for mask in plan.steps[0].masks], [float(n) for n in plan.steps[1].tables[0][1]]
    ([0], [3.0, 1.0])

    Nothing is proven for a sum that runs along the rows:

    >>> planned([jax.make_jaxpr(lambda x: jnp.cumsum(x, 0))(jnp.ones((b, 5))) for b in (3, 1)]) is None
    True
    """
    variables: list[Any] = [opened(p)[0].invars for p in programs]
    shapes = list(zip(*([v.aval.shape for v in of] for of in variables), strict=True))
    try:
        sizes = _sizes(shapes)
        operand_rows = [_one_block(lengths, sizes) for lengths in shapes]
        return _Walk(sizes).program(programs, operand_rows)
    except DependentError:
        return None


def _sizes(shapes: Sequence[Sequence[Shape]]) -> tuple[int, ...]:
    """Return the numbers of rows: the shortest axis that differs."""
    candidates = [
        lengths
        for of_leaf in shapes
        if len({len(shape) for shape in of_leaf}) == 1
        for lengths in zip(*of_leaf, strict=True)
        if len(set(lengths)) > 1
    ]
    if not candidates:
        raise DependentError("rows")
    # The shortest, because `axis_of` requires all other lengths that differ to be its multiples.
    sizes = min(candidates)
    # The first program is the one that runs, so it must have the most rows. Padding copies the first row, so
    # every program must have one.
    if max(sizes) != sizes[0] or min(sizes) < 1:
        raise DependentError("rows")
    return sizes


def _one_block(shapes: Sequence[Shape], sizes: Sequence[int]) -> Rows | None:
    axis = axis_of(shapes, sizes)
    return axis and Rows(axis[0], 1, axis[1])


class _Walk:
    """Through programs for these numbers of rows; `strict`: nothing may need a mask or its own numbers."""

    def __init__(self, sizes: tuple[int, ...], strict: bool = False, rules: frozenset[Any] = frozenset()):
        self.sizes, self.strict, self._rules = sizes, strict, rules

    def program(self, programs: Sequence[Any], operand_rows: Where) -> Plan:
        jaxprs, consts = zip(*map(opened, programs), strict=True)
        first = jaxprs[0]
        if len({(len(j.eqns), len(j.invars), len(j.constvars), len(j.outvars)) for j in jaxprs}) > 1:
            raise DependentError("equations")
        environment = Environment(self.sizes, len(jaxprs))
        environment.bind([j.invars for j in jaxprs], operand_rows)
        # Constants are not padded, so `bind` refuses those whose lengths differ.
        environment.bind([j.constvars for j in jaxprs], [None] * len(first.constvars))
        steps: dict[int, EquationPlan] = {}
        for i, eqns in enumerate(zip(*(j.eqns for j in jaxprs), strict=True)):
            step, rows = self._equation(eqns, environment.rows([e.invars for e in eqns]))
            if step != EquationPlan():
                steps[i] = step
            environment.bind([e.outvars for e in eqns], rows)
        results = tuple(environment.rows([j.outvars for j in jaxprs]))
        # Tables choose numbers among operands and constants; a result that is a number has none.
        for atoms in zip(*(j.outvars for j in jaxprs), strict=True):
            if isinstance(atoms[0], Literal) and not _alike(tuple(v.val for v in atoms)):
                raise DependentError("results")
        tables = tuple(zip(*consts, strict=True))
        plan = Plan(programs[0], self.sizes, tables, steps, tuple(operand_rows), results)
        if self.strict and not plan.plain:
            raise DependentError("mask")
        return plan

    def _equation(self, eqns: Sequence[JaxprEqn], where: Where) -> tuple[EquationPlan, Where]:
        first = eqns[0]
        tables = self._tables(eqns)
        if any(e.primitive is not first.primitive for e in eqns):
            raise DependentError("equation")
        if list(programs_in(first.params)):
            return self._calling(eqns, where, tables)
        result_rows = self._result_rows(eqns)
        name = first.primitive.name
        for key, value in first.params.items():
            free = key in SHAPES.get(name, ())
            if not free and not all(same_program(value, e.params.get(key)) for e in eqns[1:]):
                raise DependentError("parameters")
        if not any(where) and not any(result_rows):
            if any(len(set(map(repr, (e.params.get(k) for e in eqns)))) > 1 for k in SHAPES.get(name, ())):
                raise DependentError("parameters")
            return EquationPlan(tables=tables), result_rows
        rule = rule_of(name)
        if rule is None:
            raise DependentError(name)
        for key in SHAPES.get(name, ()):
            # Lengths among the parameters differ like the results' lengths: as multiples, on one axis.
            axis_of([tuple(e.params[key]) for e in eqns], self.sizes)
        try:
            effect = rule(first, where, result_rows[0])
        except (
            KeyError,
            IndexError,
            AttributeError,
        ) as error:  # a different JAX may have different parameters
            raise DependentError(name) from error
        return EquationPlan(effect.masks, tables), effect.rows

    def _result_rows(self, eqns: Sequence[JaxprEqn]) -> list[Rows | None]:
        results: Any = zip(*(e.outvars for e in eqns), strict=True)
        return [_one_block([v.aval.shape for v in variables], self.sizes) for variables in results]

    def _tables(self, eqns: Sequence[JaxprEqn]) -> Tables:
        operands = enumerate(zip(*(e.invars for e in eqns), strict=True))
        tables = [(i, tuple(v.val for v in atoms)) for i, atoms in operands if isinstance(atoms[0], Literal)]
        return tuple((i, table) for i, table in tables if not _alike(table))

    def _calling(self, eqns: Sequence[JaxprEqn], where: Where, tables: Tables) -> tuple[EquationPlan, Where]:
        first, name = eqns[0], eqns[0].primitive.name
        if has_own_jvp(first):
            return self._with_jvp(eqns, where, tables)
        if has_own_vjp(first):
            return self._with_vjp(eqns, where, tables)
        if name in ("jit", "pjit", "closed_call", "core_call"):
            plan = self.program([_called(e) for e in eqns], where)
            return EquationPlan(
                tables=tables, inner=None if plan.plain and not tables else plan
            ), plan.result_rows
        # Strict from now on: `evaluation` rewrites plain calls only. A loop runs its body as it was traced.
        walk = _Walk(self.sizes, True, self._rules)
        if tables or not self._same_settings(eqns):
            raise DependentError(name)
        if name in ("checkpoint", "remat2") or called(first) is not None:
            return EquationPlan(), walk.program([_called(e) for e in eqns], where).result_rows
        if name == "scan":
            return EquationPlan(), walk.scan(eqns, where)
        if name == "cond":
            return EquationPlan(), walk.cond(eqns, where)
        if not any(where) and not any(self._result_rows(eqns)):
            return EquationPlan(), walk.untouched(eqns)
        raise DependentError(name)

    def _same_settings(self, eqns: Sequence[JaxprEqn]) -> bool:
        """Whether the parameters that hold no program are the same."""
        return all(
            same_program(value, e.params.get(key))
            for key, value in eqns[0].params.items()
            if not list(programs_in(value))
            for e in eqns[1:]
        )

    def untouched(self, eqns: Sequence[JaxprEqn]) -> Where:
        """Check programs that see no rows: they must be the same."""
        for value in zip(*(list(programs_in(e.params)) for e in eqns), strict=True):
            self.program(value, [None] * len(opened(value[0])[0].invars))
        return [None] * len(eqns[0].outvars)

    def scan(self, eqns: Sequence[JaxprEqn], where: Where) -> Where:
        """Check a loop that leaves the rows on the same axis in every iteration."""
        # Constants, carries and scanned operands are distinguished by their shapes, because JAX 0.12 renamed
        # the parameters that count them.
        body, _ = opened(eqns[0].params["jaxpr"])
        m = _alike_in_shape(eqns[0].invars, body.invars)
        n = m - _alike_in_shape(eqns[0].outvars, body.outvars)
        pieces = [_inner(rows) for rows in where[m:]]
        carry = list(where[n:m])
        # A carry that begins as zeros fits any order of rows and then takes the body's order, so the body is
        # walked until no carry changes.
        for _ in range(len(carry) + 2):
            result_rows = self.program(
                [e.params["jaxpr"] for e in eqns], [*where[:n], *carry, *pieces]
            ).result_rows
            settled = [unified(both) for both in zip(carry, result_rows[: m - n], strict=True)]
            if settled == carry:
                break
            carry = settled
        else:
            raise DependentError("scan")
        return [*carry, *(rows and rows._replace(axis=rows.axis + 1) for rows in result_rows[m - n :])]

    def cond(self, eqns: Sequence[JaxprEqn], where: Where) -> Where:
        if where[0] is not None:
            raise DependentError("cond")
        branches = zip(*(e.params["branches"] for e in eqns), strict=True)
        results = [self.program(branch, where[1:]).result_rows for branch in branches]
        return [unified(rows) for rows in zip(*results, strict=True)]

    def _with_jvp(self, eqns: Sequence[JaxprEqn], where: Where, tables: Tables) -> tuple[EquationPlan, Where]:
        inner = self.program([_called(e) for e in eqns], where)
        moving = [rows for rows, v in zip(where, eqns[0].invars, strict=True) if moves(v.aval)]
        derivative = self._rule(eqns, tangents, [*where, *moving])
        if not tables and inner.plain and (derivative is None or derivative.plain):
            return EquationPlan(), inner.result_rows
        if derivative is None:
            raise DependentError("custom_jvp")
        return EquationPlan(tables=tables, inner=inner, derivative=derivative), inner.result_rows

    def _with_vjp(self, eqns: Sequence[JaxprEqn], where: Where, tables: Tables) -> tuple[EquationPlan, Where]:
        """Check a function with its own backward rule: neither may need a mask or a table."""
        if tables:
            raise DependentError("custom_vjp")
        walk = _Walk(self.sizes, True, self._rules)
        results = walk.program([_called(e) for e in eqns], where).result_rows
        moving_results = [rows for rows, v in zip(results, eqns[0].outvars, strict=True) if moves(v.aval)]
        backward = walk._rule(eqns, cotangents, [*where, *moving_results])
        moving = [rows for rows, v in zip(where, eqns[0].invars, strict=True) if moves(v.aval)]
        if backward is not None and list(backward.result_rows) != moving:
            raise DependentError("custom_vjp")
        return EquationPlan(), results

    def _rule(
        self,
        eqns: Sequence[JaxprEqn],
        derived: Callable[[Sequence[JaxprEqn]], list[ClosedJaxpr]],
        operand_rows: Where,
    ) -> Plan | None:
        """Return the plan of a function's derivative rule; None when recursive (already being analysed)."""
        key = _name(eqns[0])
        if key in self._rules:
            return None
        try:
            programs = derived(eqns)
        except Exception as error:  # this runs the user's own code, for all derivatives
            raise DependentError("rule") from error
        return _Walk(self.sizes, self.strict, self._rules | {key}).program(programs, operand_rows)


def _alike(values: Table) -> bool:
    """Whether a number, or a constant, is the same for all numbers of rows."""
    first, *others = values
    if any(np.shape(v) != np.shape(first) for v in others):
        raise DependentError("constant")
    return all(v is first or same_program(_array(first), _array(v)) for v in others)


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _called(eqn: JaxprEqn) -> ClosedJaxpr | Jaxpr:
    return called(eqn) or next(programs_in(eqn.params))


def _inner(rows: Rows | None) -> Rows | None:
    if rows is not None and rows.axis == 0:
        raise DependentError("scan")
    return rows and rows._replace(axis=rows.axis - 1)


def _alike_in_shape(variables: Sequence[Any], others: Sequence[Any]) -> int:
    """Return how many variables are not split over the iterations."""
    return sum(v.aval.shape == w.aval.shape for v, w in zip(variables, others, strict=True))


def _name(eqn: JaxprEqn) -> str:
    # Not by identity: each trace of a recursive function makes a new program.
    jaxpr, _ = opened(_called(eqn))
    return f"{eqn.primitive.name} {jaxpr.debug_info.func_src_info}"


class Environment:
    """The variables of all programs: which correspond to each other, and where they have rows."""

    def __init__(self, sizes: tuple[int, ...], programs: int):
        self._sizes = sizes
        self._rows: dict[Any, Rows | None] = {}  # by variables of the first program
        self._first: list[dict[Any, Any]] = [{} for _ in range(programs - 1)]  # of the others' variables

    def bind(self, variables: Sequence[Sequence[Any]], rows: Sequence[Rows | None]) -> None:
        """Pair variables, one list for each program, whose lengths must be what the rules derived."""
        for paired, where in zip(zip(*variables, strict=True), rows, strict=True):
            avals = [v.aval for v in paired]
            if len({a.dtype for a in avals}) > 1:
                raise DependentError("dtype")
            # The rules and the lengths are independent evidence. Only where both agree is the axis believed:
            # a length that happens to be the number of rows proves nothing.
            if axis_of([a.shape for a in avals], self._sizes) != (
                where and (where.axis, where.outer * where.inner)
            ):
                raise DependentError("rows")
            self._rows[paired[0]] = where
            for first, v in zip(self._first, paired[1:], strict=True):
                first[v] = paired[0]

    def rows(self, atoms: Sequence[Sequence[Any]]) -> list[Rows | None]:
        """Return where operands have rows, one list for each program, which must read the same variables."""
        for first, others in zip(self._first, atoms[1:], strict=True):
            for v, w in zip(atoms[0], others, strict=True):
                literal = isinstance(v, Literal)
                if literal != isinstance(w, Literal) or not (literal or first[w] is v):
                    raise DependentError("operands")
        return [None if isinstance(v, Literal) else self._rows[v] for v in atoms[0]]
