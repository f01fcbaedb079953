"""Attention in float64: `jax.nn.dot_product_attention` takes its softmax in float32, whatever its inputs are.

So does every `nnx.MultiHeadAttention`. In float64 that is an error of 1e-7, a thousand times the bound of a
difference in meaning, and it hides any that is smaller. torch's softmax has its inputs' type.

JAX has no switch for it, and to replace JAX's function for the length of a comparison would replace it for
every thread of the process. So the traced program is changed instead: where attention rounds to float32, the
rounding is left out, and everything that follows from the rounded numbers is float64 until they are float64
again anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from ..._upstream import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

R = TypeVar("R")
Atom = Var | Literal
WIDE, NARROW = np.dtype(np.float64), np.dtype(np.float32)
ROUNDING = "_dot_product_attention_core"
"""JAX's function that rounds. tests/test_parity_attention.py fails when it has another name."""


def softmax_in_float64(function: Callable[..., R]) -> Callable[..., R]:
    """`function`, with the softmax of `jax.nn.dot_product_attention` in the type of float64 inputs."""

    def exact(*args: Any) -> R:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        outputs = jaxpr_as_fun(_exact(program))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return exact


def _exact(program: Jaxpr | ClosedJaxpr) -> Jaxpr | ClosedJaxpr:
    """A Jaxpr or ClosedJaxpr without attention's roundings; itself if it has none."""
    jaxpr: Any = getattr(program, "jaxpr", program)
    rewritten = _Rewriting().of(jaxpr)
    if rewritten is jaxpr:
        return program
    return rewritten if jaxpr is program else program.replace(jaxpr=rewritten)


class _Rewriting:
    """One pass over the equations of a program. Its inputs and outputs keep their types."""

    def __init__(self) -> None:
        self.instead: dict[Var, Atom] = {}
        """A variable, and the one that takes its place."""
        self.cast: JaxprEqn | None = None
        """One of attention's roundings, as a pattern for other casts."""
        self.changed = False

    def of(self, jaxpr: Jaxpr) -> Jaxpr:
        equations = [new for equation in jaxpr.eqns for new in self._equation(equation)]
        if not self.instead and not self.changed:
            return jaxpr
        return jaxpr.replace(eqns=equations, outvars=[self._now(x) for x in jaxpr.outvars])

    def _equation(self, equation: JaxprEqn) -> Iterator[JaxprEqn]:
        given = [self._now(x) for x in equation.invars]
        wider = any(_dtype(x) != _dtype(old) for x, old in zip(given, equation.invars, strict=True))
        if _rounds(equation):
            self.cast = equation
            self.instead[equation.outvars[0]] = given[0]
        elif wider and _is_cast(equation, WIDE, NARROW):
            self.instead[equation.outvars[0]] = given[0]  # back to what it still is
        elif wider and (inner := _program_of(equation)):
            yield from self._inlined(inner, equation, given)
        elif wider:
            yield from self._widened(equation, given)
        else:
            yield self._with_programs(equation.replace(invars=given))

    def _widened(self, equation: JaxprEqn, given: list[Atom]) -> Iterator[JaxprEqn]:
        """The equation with float64 for float32 in all that it is given, told and returns."""
        assert self.cast is not None
        for i, x in enumerate(given):
            if _dtype(x) == NARROW:  # a constant, such as the -inf that a maximum starts from
                given[i] = wide = Var(x.aval.update(dtype=WIDE))
                to_wide = self.cast.params | {"new_dtype": WIDE}
                yield self.cast.replace(invars=[x], outvars=[wide], params=to_wide)
        made = [Var(x.aval.update(dtype=WIDE)) if _dtype(x) == NARROW else x for x in equation.outvars]
        self.instead |= dict(zip(equation.outvars, made, strict=True))
        params = {key: WIDE if _is_narrow(value) else value for key, value in equation.params.items()}
        yield equation.replace(invars=given, outvars=made, params=params)

    def _inlined(self, inner: Jaxpr, equation: JaxprEqn, given: list[Atom]) -> Iterator[JaxprEqn]:
        """The equations of a program that the softmax calls: its rule under jax_softmax_custom_jvp."""
        self.instead |= dict(zip(inner.invars, given, strict=True))
        for each in inner.eqns:
            yield from self._equation(each)
        self.instead |= dict(zip(equation.outvars, map(self._now, inner.outvars), strict=True))

    def _with_programs(self, equation: JaxprEqn) -> JaxprEqn:
        """The equation, with the programs that it runs rewritten: jit, scan, cond, remat, shard_map."""
        params = {key: _in_params(value) for key, value in equation.params.items()}
        if all(params[key] is value for key, value in equation.params.items()):
            return equation
        self.changed = True
        return equation.replace(params=params)

    def _now(self, x: Atom) -> Atom:
        return x if isinstance(x, Literal) else self.instead.get(x, x)


def _in_params(value: Any) -> Any:
    if isinstance(value, (Jaxpr, ClosedJaxpr)):
        return _exact(value)
    if type(value) in (tuple, list) and any(isinstance(x, (Jaxpr, ClosedJaxpr)) for x in value):
        new = type(value)(map(_in_params, value))
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value


def _program_of(equation: JaxprEqn) -> Any:
    found = (x for x in equation.params.values() if isinstance(x, (Jaxpr, ClosedJaxpr)))
    return next((getattr(program, "jaxpr", program) for program in found), None)


def _rounds(equation: JaxprEqn) -> bool:
    """Whether attention's own code rounds float64 to float32 here."""
    if not _is_cast(equation, NARROW) or _dtype(equation.invars[0]) != WIDE:
        return False
    traceback = equation.source_info.traceback
    return traceback is not None and any(frame.function_name == ROUNDING for frame in traceback.frames)


def _is_cast(equation: JaxprEqn, *dtypes: np.dtype) -> bool:
    return equation.primitive.name == "convert_element_type" and equation.params["new_dtype"] in dtypes


def _dtype(x: Atom) -> np.dtype | None:
    return getattr(x.aval, "dtype", None)


def _is_narrow(value: object) -> bool:
    return isinstance(value, (np.dtype, type)) and value in (NARROW, NARROW.type)
