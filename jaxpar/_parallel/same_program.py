"""same_program: whether two traces of a function gave the same program, up to the names of variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .._upstream import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, inside, opened

Names: TypeAlias = dict[Any, Any]  # which variable of the one program is which of the other


def programs_in(value: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
    """Yield the programs in an equation's parameters, or in one of them."""
    program = inside(value)
    if program is not None:
        yield program
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from programs_in(item)


def same_program(a: Any, b: Any) -> bool:
    """Whether two programs, or parameters of equations, are the same."""
    return _equal(a, b, {})


def _equal(a: Any, b: Any, names: Names) -> bool:
    program, twin = inside(a), inside(b)
    if program is not None and twin is not None:
        (one, consts), (other, others) = opened(program), opened(twin)
        return _equal(consts, others, names) and _equal_jaxprs(one, other, names)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_equal(x, y, names) for x, y in zip(a, b, strict=True))
    if isinstance(a, jax.core.Tracer):
        return a is b
    if isinstance(a, np.ndarray | jax.Array):
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    # Functions among the parameters (derivative rules, callbacks) are new objects at each trace, but made
    # from the same source, so they count as equal.
    return a is b or callable(a) or hasattr(a, "call_wrapped") or bool(a == b)


def _equal_jaxprs(a: Jaxpr, b: Jaxpr, names: Names) -> bool:
    names |= dict(zip([*a.constvars, *a.invars], [*b.constvars, *b.invars], strict=False))
    return (
        len(a.eqns) == len(b.eqns)
        and all(_equal_equations(x, y, names) for x, y in zip(a.eqns, b.eqns, strict=True))
        and _equal_atoms(a.outvars, b.outvars, names)
    )


def _equal_equations(x: JaxprEqn, y: JaxprEqn, names: Names) -> bool:
    if x.primitive is not y.primitive or not _equal_atoms(x.invars, y.invars, names):
        return False
    names |= dict(zip(x.outvars, y.outvars, strict=True))
    return all(_equal(value, y.params[key], dict(names)) for key, value in x.params.items())


def _equal_atoms(a: Sequence[Any], b: Sequence[Any], names: Names) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if x.aval != y.aval or isinstance(x, Literal) != isinstance(y, Literal):
            return False
        same = (
            _equal(np.asarray(x.val), np.asarray(y.val), names) if isinstance(x, Literal) else names[x] is y
        )
        if not same:
            return False
    return True
