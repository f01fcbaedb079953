"""analysis: from the programs for all numbers of rows to the one that runs, if there can be one.

The programs are walked side by side. They must be the same but for the lengths of axes and for numbers, such
as the 3 that a mean divides by. What the lengths say, the rules of `rules` must explain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..._typing import Shape
from ..._upstream import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    called,
    has_own_jvp,
    has_own_vjp,
    inside,
    opened,
)
from ..same_program import equal_parameters
from .derivatives import cotangents, moves, tangents
from .rows import DependentError, Rows, axis_of, unified
from .rules import SHAPES, Mask, rule_of

Where = Sequence[Rows | None]
Table = tuple[Any, ...]
"""A number of the program, one for each number of rows."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation that does not run as it stands.

    Attributes:
      masks: operands whose padding gets another value before.
      tables: operands that are another number for other numbers of rows.
      inner, derivative: the program that it calls, and the one of its own rule for derivatives.
    """

    masks: tuple[Mask, ...] = ()
    tables: tuple[tuple[int, Table], ...] = ()
    inner: Plan | None = None
    derivative: Plan | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The program for the most rows, and what is done to it.

    Attributes:
      sizes: the numbers of rows, one for each program, the largest first or not.
      consts: for each constant of the program, one for each number of rows.
      steps: by the number of the equation.
      given, results: where operands and results have rows.
    """

    program: ClosedJaxpr | Jaxpr
    sizes: tuple[int, ...]
    consts: tuple[Table, ...]
    steps: dict[int, Step]
    given: tuple[Rows | None, ...]
    results: tuple[Rows | None, ...]

    @property
    def plain(self) -> bool:
        """Whether the program runs as it stands."""
        return not self.steps and all(_alike(table) for table in self.consts)

    def rewritten(self, f: Callable[[Any], Any]) -> Plan:
        """The same plan for f(program), which has an equation for each."""

        def step(step: Step) -> Step:
            inner, derivative = (p and p.rewritten(f) for p in (step.inner, step.derivative))
            return dataclasses.replace(step, inner=inner, derivative=derivative)

        steps = {i: step(s) for i, s in self.steps.items()}
        return dataclasses.replace(self, program=f(self.program), steps=steps)


def planned(programs: Sequence[ClosedJaxpr]) -> Plan | None:
    """What makes the first program, which has the most rows, right for all; None where nothing proves it."""
    variables: list[Any] = [opened(p)[0].invars for p in programs]
    shapes = list(zip(*([v.aval.shape for v in of] for of in variables), strict=True))
    try:
        sizes = _sizes(shapes)
        given = [_input(lengths, sizes) for lengths in shapes]
        return _Walk(sizes).program(programs, given)
    except DependentError:
        return None


def _sizes(shapes: Sequence[Sequence[Shape]]) -> tuple[int, ...]:
    """The numbers of rows: the shortest axis that differs."""
    found = [
        lengths
        for of_leaf in shapes
        if len({len(shape) for shape in of_leaf}) == 1
        for lengths in zip(*of_leaf, strict=True)
        if len(set(lengths)) > 1
    ]
    if not found:
        raise DependentError("rows")
    sizes = min(found)
    if max(sizes) != sizes[0] or min(sizes) < 1:
        raise DependentError("rows")
    return sizes


def _input(shapes: Sequence[Shape], sizes: Sequence[int]) -> Rows | None:
    found = axis_of(shapes, sizes)
    return found and Rows(found[0], 1, found[1])


class _Walk:
    """Through programs for these numbers of rows; `strict`: nothing may need a mask or its own numbers."""

    def __init__(self, sizes: tuple[int, ...], strict: bool = False, rules: frozenset[Any] = frozenset()):
        self.sizes, self.strict, self._rules = sizes, strict, rules

    def program(self, programs: Sequence[Any], given: Where) -> Plan:
        jaxprs, consts = zip(*map(opened, programs), strict=True)
        first = jaxprs[0]
        if len({(len(j.eqns), len(j.invars), len(j.constvars), len(j.outvars)) for j in jaxprs}) > 1:
            raise DependentError("equations")
        names: list[dict[Any, Any]] = [{} for _ in jaxprs[1:]]
        where: dict[Any, Rows | None] = {}

        def met(variables: Sequence[Sequence[Any]], rows: Where) -> None:
            for (v, *others), r in zip(zip(*variables, strict=True), rows, strict=True):
                self._check(v, others, r)
                where[v] = r
                for name, other in zip(names, others, strict=True):
                    name[other] = v

        met([j.invars for j in jaxprs], given)
        met([j.constvars for j in jaxprs], [None] * len(first.constvars))
        tables = tuple(zip(*consts, strict=True))
        steps: dict[int, Step] = {}
        for i, eqns in enumerate(zip(*(j.eqns for j in jaxprs), strict=True)):
            for name, other in zip(names, eqns[1:], strict=True):
                _check_operands(eqns[0], other, name)
            rows = [None if isinstance(v, Literal) else where[v] for v in eqns[0].invars]
            step, results = self._equation(eqns, rows)
            if step != Step():
                steps[i] = step
            met([e.outvars for e in eqns], results)
        for name, other in zip(names, jaxprs[1:], strict=True):
            _check_operands(first, other, name, "outvars")
        for atoms in zip(*(j.outvars for j in jaxprs), strict=True):
            if isinstance(atoms[0], Literal) and not _alike(tuple(v.val for v in atoms)):
                raise DependentError("results")
        results = tuple(None if isinstance(v, Literal) else where[v] for v in first.outvars)
        plan = Plan(programs[0], self.sizes, tables, steps, tuple(given), results)
        if self.strict and not plan.plain:
            raise DependentError("mask")
        return plan

    def _check(self, v: Any, others: Sequence[Any], rows: Rows | None) -> None:
        """What the rules say of a variable is what its lengths say."""
        avals = [v.aval, *(other.aval for other in others)]
        if len({a.dtype for a in avals}) > 1:
            raise DependentError("dtype")
        found = axis_of([a.shape for a in avals], self.sizes)
        if found != (rows and (rows.axis, rows.outer * rows.inner)):
            raise DependentError("rows")

    def _equation(self, eqns: Sequence[JaxprEqn], where: Where) -> tuple[Step, Where]:
        first = eqns[0]
        tables = self._tables(eqns)
        if any(e.primitive is not first.primitive for e in eqns):
            raise DependentError("equation")
        if list(_programs(first)):
            return self._calling(eqns, where, tables)
        made = [self._made(variables) for variables in zip(*(e.outvars for e in eqns), strict=True)]
        name = first.primitive.name
        for key, value in first.params.items():
            free = key in SHAPES.get(name, ())
            if not free and not all(equal_parameters(value, e.params.get(key)) for e in eqns[1:]):
                raise DependentError("parameters")
        if not any(where) and not any(made):
            if any(len(set(map(repr, (e.params.get(k) for e in eqns)))) > 1 for k in SHAPES.get(name, ())):
                raise DependentError("parameters")
            return Step(tables=tables), made
        rule = rule_of(name)
        if rule is None:
            raise DependentError(name)
        if name in SHAPES:
            self._check_lengths(eqns, SHAPES[name][0])
        try:
            found = rule(first, where, made[0])
        except (KeyError, IndexError, AttributeError) as error:  # another JAX may have other parameters
            raise DependentError(name) from error
        return Step(found.masks, tables), found.rows

    def _check_lengths(self, eqns: Sequence[JaxprEqn], key: str) -> None:
        """Lengths among the parameters differ as lengths of the results do: as multiples, on one axis."""
        axis_of([tuple(e.params[key]) for e in eqns], self.sizes)

    def _made(self, variables: Sequence[Any]) -> Rows | None:
        found = axis_of([v.aval.shape for v in variables], self.sizes)
        return found and Rows(found[0], 1, found[1])

    def _tables(self, eqns: Sequence[JaxprEqn]) -> tuple[tuple[int, Table], ...]:
        found = []
        for i, atoms in enumerate(zip(*(e.invars for e in eqns), strict=True)):
            if isinstance(atoms[0], Literal):
                values = tuple(v.val for v in atoms)
                if not _alike(values):
                    found.append((i, values))
        return tuple(found)

    # ------------------------------------------------------------------------------ programs in programs

    def _calling(
        self, eqns: Sequence[JaxprEqn], where: Where, tables: tuple[tuple[int, Table], ...]
    ) -> tuple[Step, Where]:
        """An equation that runs other programs."""
        first, name = eqns[0], eqns[0].primitive.name
        if has_own_jvp(first):
            return self._with_jvp(eqns, where, tables)
        if has_own_vjp(first):
            return self._with_vjp(eqns, where, tables)
        if name in ("jit", "pjit", "closed_call", "core_call"):
            plan = self.program([_called(e) for e in eqns], where)
            return Step(tables=tables, inner=None if plan.plain and not tables else plan), plan.results
        walk = _Walk(self.sizes, True, self._rules)
        if tables or not self._same_settings(eqns):
            raise DependentError(name)
        if name in ("checkpoint", "remat2") or called(first) is not None:
            return Step(), walk.program([_called(e) for e in eqns], where).results
        if name == "scan":
            return Step(), walk.scan(eqns, where)
        if name == "cond":
            return Step(), walk.cond(eqns, where)
        if not any(where) and not any(self._made(v) for v in zip(*(e.outvars for e in eqns), strict=True)):
            return Step(), walk.untouched(eqns)
        raise DependentError(name)

    def _same_settings(self, eqns: Sequence[JaxprEqn]) -> bool:
        """Whether the parameters that hold no program are the same."""
        return all(
            equal_parameters(value, e.params.get(key))
            for key, value in eqns[0].params.items()
            if not list(_inside(value))
            for e in eqns[1:]
        )

    def untouched(self, eqns: Sequence[JaxprEqn]) -> Where:
        """Programs that see no rows, and are the same."""
        for value in zip(*(list(_programs(e)) for e in eqns), strict=True):
            self.program(value, [None] * len(opened(value[0])[0].invars))
        return [None] * len(eqns[0].outvars)

    def scan(self, eqns: Sequence[JaxprEqn], where: Where) -> Where:
        """A loop whose every turn leaves the rows where they are."""
        # Which operands are constants, carried or scanned: JAX's parameters for it are others since 0.12.
        body, _ = opened(eqns[0].params["jaxpr"])
        m = _alike_in_shape(eqns[0].invars, body.invars)
        n = m - _alike_in_shape(eqns[0].outvars, body.outvars)
        pieces = [_inner(rows) for rows in where[m:]]
        carry = list(where[n:m])
        for _ in range(len(carry) + 2):
            made = self.program([e.params["jaxpr"] for e in eqns], [*where[:n], *carry, *pieces]).results
            settled = [unified(both) for both in zip(carry, made[: m - n], strict=True)]
            if settled == carry:
                break
            carry = settled
        else:
            raise DependentError("scan")
        return [*carry, *(rows and rows._replace(axis=rows.axis + 1) for rows in made[m - n :])]

    def cond(self, eqns: Sequence[JaxprEqn], where: Where) -> Where:
        """A choice that does not depend on rows."""
        if where[0] is not None:
            raise DependentError("cond")
        branches = zip(*(e.params["branches"] for e in eqns), strict=True)
        results = [self.program(branch, where[1:]).results for branch in branches]
        return [unified(rows) for rows in zip(*results, strict=True)]

    def _with_jvp(
        self, eqns: Sequence[JaxprEqn], where: Where, tables: tuple[tuple[int, Table], ...]
    ) -> tuple[Step, Where]:
        """A function with a rule for its derivative: both are looked at."""
        inner = self.program([_called(e) for e in eqns], where)
        moving = [rows for rows, v in zip(where, eqns[0].invars, strict=True) if moves(v.aval)]
        derivative = self._rule(eqns, tangents, [*where, *moving])
        if not tables and inner.plain and (derivative is None or derivative.plain):
            return Step(), inner.results
        if derivative is None:
            raise DependentError("custom_jvp")
        return Step(tables=tables, inner=inner, derivative=derivative), inner.results

    def _with_vjp(
        self, eqns: Sequence[JaxprEqn], where: Where, tables: tuple[tuple[int, Table], ...]
    ) -> tuple[Step, Where]:
        """A function with a rule for its backward pass: neither may need anything."""
        if tables:
            raise DependentError("custom_vjp")
        walk = _Walk(self.sizes, True, self._rules)
        results = walk.program([_called(e) for e in eqns], where).results
        given = [rows for rows, v in zip(results, eqns[0].outvars, strict=True) if moves(v.aval)]
        backward = walk._rule(eqns, cotangents, [*where, *given])
        moving = [rows for rows, v in zip(where, eqns[0].invars, strict=True) if moves(v.aval)]
        if backward is not None and list(backward.results) != moving:
            raise DependentError("custom_vjp")
        return Step(), results

    def _rule(
        self,
        eqns: Sequence[JaxprEqn],
        derived: Callable[[Sequence[JaxprEqn]], list[ClosedJaxpr]],
        given: Where,
    ) -> Plan | None:
        """A function's rule for derivatives; None if it is looked at already, because it uses itself."""
        key = _name(eqns[0])
        if key in self._rules:
            return None
        try:
            programs = derived(eqns)
        except Exception as error:  # the user's own code runs in there, and is asked for all derivatives
            raise DependentError("rule") from error
        return _Walk(self.sizes, self.strict, self._rules | {key}).program(programs, given)


# ------------------------------------------------------------------------------------------ equations


def _alike(values: Table) -> bool:
    """Whether a number, or a constant, is the same for all numbers of rows."""
    first, *others = values
    if any(np.shape(v) != np.shape(first) for v in others):
        raise DependentError("constant")
    return all(v is first or equal_parameters(_array(first), _array(v)) for v in others)


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _check_operands(first: Any, other: Any, name: dict[Any, Any], of: str = "invars") -> None:
    """Two equations read the same variables."""
    pairs = zip(getattr(first, of), getattr(other, of), strict=True)
    for v, w in pairs:
        if isinstance(v, Literal) != isinstance(w, Literal) or not (isinstance(v, Literal) or name[w] is v):
            raise DependentError("operands")


def _inside(value: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
    """The programs in a parameter."""
    program = inside(value)
    if program is not None:
        yield program
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _inside(item)


def _programs(eqn: JaxprEqn) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in eqn.params.values():
        yield from _inside(value)


def _called(eqn: JaxprEqn) -> ClosedJaxpr | Jaxpr:
    return called(eqn) or next(_programs(eqn))


def _inner(rows: Rows | None) -> Rows | None:
    """Where one turn's part of a scanned array has rows."""
    if rows is not None and rows.axis == 0:
        raise DependentError("scan")
    return rows and rows._replace(axis=rows.axis - 1)


def _alike_in_shape(variables: Sequence[Any], others: Sequence[Any]) -> int:
    """How many are not cut into turns."""
    return sum(v.aval.shape == w.aval.shape for v, w in zip(variables, others, strict=True))


def _name(eqn: JaxprEqn) -> str:
    """The function that an equation calls: what it is called, and where it is written."""
    jaxpr, _ = opened(_called(eqn))
    return f"{eqn.primitive.name} {jaxpr.debug_info.func_src_info}"
