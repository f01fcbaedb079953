"""Run a Flax model in float64 throughout, whatever types its code requests.

`x.astype(jnp.float32)` or a layer's `dtype` rounds, and an error of 1e-7 is a thousand times the bound for a
difference in meaning. JAX has no such switch, and patching its functions would affect every thread. Instead,
operations are changed while they are traced: a cast to float32 becomes a cast to float64, and a following
`0.1 * x` is float64 as well. The bodies of jit, scan and cond are traced separately, where no hook applies,
so the finished program is rewritten too; by then, constants such as 0.1 are already rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..._upstream import (
    PROGRAMS,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    backward_rule,
    inside,
    jaxpr_as_fun,
    opened,
    rewritten,
    rule_of_jvp,
    rule_of_vjp,
)
from ..._upstream.interception import intercepted
from .constants import Constants, line_of
from .flax_choices import Choices

_line = functools.partial(line_of, otherwise="the Flax module")
R = TypeVar("R")
Atom = Var | Literal

FLOATS = (np.float32, np.float16, jnp.bfloat16)
WIDE: dict[np.dtype, np.dtype] = {np.dtype(narrow): np.dtype(np.float64) for narrow in FLOATS}
WIDE[np.dtype(np.complex64)] = np.dtype(np.complex128)
CAST = "convert_element_type"
BITS = ("bitcast_convert_type", "reduce_precision")  # run in the type they were written for
OPAQUE = ("pallas_call", "ffi_call", "call_hi_primitive")  # their bodies cannot be rewritten
DIGITS = 6  # decimal digits, up to which a float32 constant is a literal in the source code


def in_float64(function: Callable[..., R], constants: Constants | None = None) -> Callable[..., R]:
    return lambda *args: with_choices(function, constants)(*args)[0]


def with_choices(
    function: Callable[..., R], constants: Constants | None = None, choices: Choices | None = None
) -> Callable[..., tuple[R, list[Any]]]:
    """Return the function in float64, with a flag for each of the choices that are watched."""
    constants = constants or Constants()

    def wide(*args: Any) -> tuple[R, list[Any]]:
        program, shapes = _traced(function, args, constants)
        program, arguments = (
            _Widening(constants).program(program),
            [*map(_wide_tracer, jax.tree.leaves(args))],
        )
        outputs, flags = (
            choices.run(program, arguments) if choices else (jaxpr_as_fun(program)(*arguments), [])
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs), flags

    return wide


def _traced(function: Callable[..., Any], args: tuple, constants: Constants) -> tuple[Any, Any]:
    passage = _Passage(constants)

    def passing(*args: Any) -> Any:
        with intercepted(passage.before, passage.after):
            return function(*args)

    try:
        return jax.make_jaxpr(passing, return_shape=True)(*args)
    except Exception:
        # A scan whose body casts to float32 has a carry of a different type than its float64 input. Tracing
        # in the original types succeeds, unless the error is the user's own.
        with suppress(TypeError):
            return jax.make_jaxpr(function, return_shape=True)(*args)
        return jax.make_jaxpr(function, return_shape=True)(*jax.tree.map(_narrow, args))


def _narrow(x: Any) -> Any:
    """Loops may start from float32, for which the model was written."""
    return jnp.asarray(x, np.float32) if _dtype(x) == np.float64 else x


# ------------------------------------------------------------------------------ while it is being traced


class _Passage:
    def __init__(self, constants: Constants):
        self.constants = constants

    def before(self, primitive: Primitive, args: Sequence[Any], params: dict) -> tuple[Sequence[Any], dict]:
        if primitive.name in BITS:
            return _narrowed(args, params), params
        if any(_programs_in(value) for value in params.values()):
            return args, params  # both were traced for these types; `_Widening` changes them together
        if primitive.name == CAST:
            self.constants.note_cast(params["new_dtype"])
        params = {name: _wide_param(value) for name, value in params.items()}
        return [self._wide(x) for x in args], params

    def after(self, result: Any) -> Any:
        return list(map(self._wide, result)) if isinstance(result, (list, tuple)) else self._wide(result)

    def _wide(self, x: Any) -> Any:
        if isinstance(x, jax.core.Tracer):
            return _wide_tracer(x)
        return self.constants(np.asarray(x)) if _dtype(x) in WIDE else x


def _narrowed(args: Sequence[Any], params: dict) -> list[Any]:
    size = np.dtype(params.get("new_dtype", np.int64)).itemsize
    return [jnp.asarray(x, jnp.float32) if size == 4 and _dtype(x) == np.float64 else x for x in args]


def _wide_tracer(x: Any) -> Any:
    return jax.lax.convert_element_type(x, WIDE[_dtype(x)]) if _dtype(x) in WIDE else x


# --------------------------------------------------------------------------------- the finished program


class _Widening:
    """Each variable of a narrow type becomes a wide one, nested programs included."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.widened: dict[int, tuple[Any, Any]] = {}
        """Original and rewritten programs by the original's id, so that JAX compiles each one only once."""

    def program(self, program: Any) -> Any:
        if id(program) not in self.widened:
            self.widened[id(program)] = program, self._changed(program)
        return self.widened[id(program)][1]

    def _changed(self, program: Any) -> Any:
        jaxpr, consts = opened(program)
        for x in consts:
            # A float64 table of NumPy's would be rounded to float32 outside a comparison.
            if not isinstance(x, jax.core.Tracer) and _dtype(x) == np.float64:
                self.constants.note(np.asarray(x))
        body = _Body(self)
        fields = {name: [body.wide(x) for x in getattr(jaxpr, name)] for name in ("constvars", "invars")}
        equations = [widened for equation in jaxpr.eqns for widened in body.equation(equation)]
        # The same object if nothing changed: JAX compares jaxprs in parameters by identity.
        if not body.changed:
            return program
        consts = [self._constant(x, var, jaxpr) for x, var in zip(consts, jaxpr.constvars, strict=True)]
        outvars = [body.wide(x) for x in jaxpr.outvars]
        return rewritten(program, consts, **fields, eqns=equations, outvars=outvars)

    def _constant(self, x: Any, var: Var, jaxpr: Jaxpr) -> Any:
        if _dtype(x) not in WIDE or isinstance(x, jax.core.Tracer):
            return _wide_tracer(x)
        first = next((user for user in jaxpr.eqns if var in user.invars), None)
        return self.constants(np.asarray(x), f"{_dtype(x)}{list(np.shape(x))} in {_line(first)}")


class _Body:
    def __init__(self, programs: _Widening):
        self.programs, self.changed = programs, False
        self.instead: dict[Var, Atom] = {}

    def wide(self, x: Atom) -> Atom:
        if isinstance(x, Literal):
            return self._literal(x)
        if x not in self.instead:
            wide = WIDE.get(_dtype(x))
            self.changed |= wide is not None
            self.instead[x] = x if wide is None else Var(x.aval.update(dtype=wide))
        return self.instead[x]

    def _literal(self, x: Literal) -> Literal:
        wide = WIDE.get(_dtype(x))
        if wide is None:
            return x
        self.changed = True
        return Literal(wide.type(_written(x.val)), x.aval.update(dtype=wide))

    def equation(self, equation: JaxprEqn) -> Iterator[JaxprEqn]:
        inputs = [self.wide(x) for x in equation.invars]
        if equation.primitive.name in (*BITS, *OPAQUE):
            yield from self._in_its_own_types(equation, inputs)
            return
        if equation.primitive.name == CAST:
            self.programs.constants.note_cast(equation.params["new_dtype"], _line(equation))
            to = WIDE.get(equation.params["new_dtype"]) if equation.params["sharding"] is None else None
            if to is not None and to == _dtype(inputs[0]) and isinstance(inputs[0], Var):
                self.changed = True
                self.instead[equation.outvars[0]] = inputs[0]  # the input is float64 already
                return
        params = {name: self._param(name, value) for name, value in equation.params.items()}
        outputs = [cast(Var, self.wide(x)) for x in equation.outvars]
        same = all(params[name] is value for name, value in equation.params.items())
        self.changed |= not same
        yield equation.replace(invars=inputs, outvars=outputs, params=params)

    def _in_its_own_types(self, equation: JaxprEqn, inputs: list[Atom]) -> Iterator[JaxprEqn]:
        arguments = list(equation.invars)
        for i, (narrow, wide) in enumerate(zip(equation.invars, inputs, strict=True)):
            if isinstance(narrow, Var):
                arguments[i] = wide if _dtype(narrow) == _dtype(wide) else Var(narrow.aval)
                if arguments[i] is not wide:
                    yield _converted(equation, wide, cast(Var, arguments[i]))
        results = [Var(x.aval) if _dtype(x) in WIDE else x for x in equation.outvars]
        yield equation.replace(invars=arguments, outvars=results)
        for narrow, result in zip(equation.outvars, results, strict=True):
            if narrow is not result:
                yield _converted(equation, result, cast(Var, self.wide(narrow)))

    def _param(self, name: str, value: Any) -> Any:
        # Custom derivatives hold their rules as functions that are traced later, so they are wrapped.
        if name == "jvp_jaxpr_fun":
            return rule_of_jvp(value, self.programs.program)
        if name == "fwd_jaxpr_thunk":
            return rule_of_vjp(value, self.programs.program)
        if name == "bwd" and hasattr(value, "call_wrapped"):
            return backward_rule(value, lambda rule: in_float64(rule, self.programs.constants))
        if isinstance(value, PROGRAMS):
            return self.programs.program(value)
        if isinstance(value, (tuple, list)) and any(_programs_in(x) for x in value):
            new = [self._param("", x) for x in value]
            same = all(a is b for a, b in zip(new, value, strict=True))
            return value if same else (type(value)(*new) if hasattr(value, "_fields") else type(value)(new))
        return _wide_param(value)


def _converted(like: JaxprEqn, x: Atom, to: Var) -> JaxprEqn:
    dtype = _dtype(to)
    pattern = jax.make_jaxpr(lambda x: jax.lax.convert_element_type(x, dtype))(
        jax.ShapeDtypeStruct((), _dtype(x))
    )
    return opened(pattern)[0].eqns[0].replace(invars=[x], outvars=[to], source_info=like.source_info)


def _written(value: Any) -> Any:
    """Return the decimal literal that a float32 constant was written as: 0.1 for 0.100000001."""
    array = np.asarray(value)
    if array.dtype != np.float32 or not np.isfinite(array):
        return array
    short = float(str(array[()]))
    return short if float(f"{short:.{DIGITS}g}") == short else array


def _programs_in(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_programs_in, value))
    return inside(value) is not None or hasattr(value, "call_wrapped")


def _wide_param(value: Any) -> Any:
    if isinstance(value, (jax.lax.DotAlgorithm, jax.lax.DotAlgorithmPreset)):
        return jax.lax.Precision.HIGHEST
    if isinstance(value, (np.dtype, type)):
        try:
            return WIDE.get(np.dtype(value), value)
        except TypeError:
            return value
    return value


def _dtype(x: Any) -> Any:
    aval = getattr(x, "aval", x)
    if isinstance(aval, (jax.core.ShapedArray, np.ndarray, np.generic, jax.Array)):
        return aval.dtype
    return None
