"""whole_axis: the named axis of a vmap whose rows are on several devices.

`jax.vmap(net, axis_name="batch")` gives the module's collectives an axis of all rows. Each device maps over
its own rows, so a sum over the axis is one over these, continued over the replicas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._typing import REPLICA, PyTree
from .._upstream import (
    PROGRAMS,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    has_own_jvp,
    has_own_vjp,
    inside,
    jaxpr_as_fun,
    opened,
    rewritten,
)
from .._upstream.mesh_context import without_mesh
from ..errors import CollectiveError
from .same_program import programs_in

REDUCTIONS = {"psum": jax.lax.psum, "pmax": jax.lax.pmax, "pmin": jax.lax.pmin}
"""Collectives that can be done in two parts, over the rows of a device and over the devices."""


@dataclasses.dataclass(frozen=True)
class RowsAxis:
    """The axis of a vmap: its name, the number of rows of all devices, and whether these are several."""

    name: Any
    size: int
    divided: bool

    def run(self, function: Callable[..., PyTree], arrays: Sequence[jax.Array]) -> PyTree:
        """Return `function(*arrays)`, in a vmap over a device's rows, with collectives over the rows of all.

        Raises:
          CollectiveError: a collective over the axis other than a sum, mean, maximum or minimum, or one
            in a function with a derivative of its own.
        """
        if not self.divided:
            return function(*arrays)
        # With the size of the whole axis, a number in the program: a mean is a sum that is divided by it.
        program, shapes = without_mesh(function, arrays, [(self.name, self.size)])
        outputs = jaxpr_as_fun(self._continued(program))(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    def _continued(self, program: Any) -> Any:
        """Return the program with its collectives over the axis replaced, at any depth."""

        def param(value: Any) -> Any:
            if isinstance(value, PROGRAMS):
                return self._continued(value)
            return tuple(map(param, value)) if type(value) is tuple else value

        def equation(eqn: JaxprEqn) -> JaxprEqn:
            if self._is_over(eqn):
                return self._reduction(eqn)
            if _is_opaque(eqn) and self._uses(eqn):
                raise CollectiveError(
                    "DataParallel: a function with a derivative of its own has a collective over the axis "
                    f"{self.name!r} of jax.vmap, whose rows are on several devices. Take the collective out "
                    "of that function."
                )
            return eqn.replace(params={key: param(value) for key, value in eqn.params.items()})

        return rewritten(program, eqns=list(map(equation, opened(program)[0].eqns)))

    def _reduction(self, eqn: JaxprEqn) -> JaxprEqn:
        """Return an equation that reduces over the rows of all devices."""
        name = eqn.primitive.name
        if name not in REDUCTIONS or len(_axes(eqn)) > 1 or eqn.params.get("axis_index_groups"):
            raise CollectiveError(
                f"DataParallel: the module calls {name} over the axis {self.name!r} of jax.vmap, whose rows "
                "are on several devices. Sums, means, largest and smallest values over that axis alone are "
                "those of all rows; take other collectives out of the module."
            )

        def reduced(*xs: jax.Array) -> tuple[jax.Array, ...]:
            return REDUCTIONS[name](REDUCTIONS[name](xs, self.name), REPLICA)

        axes, operands = [(self.name, self.size)], [x.aval for x in eqn.invars]
        (call,) = jax.make_jaxpr(jax.jit(reduced), axis_env=axes)(*operands).eqns
        return call.replace(invars=eqn.invars, outvars=eqn.outvars)

    def _is_over(self, eqn: JaxprEqn) -> bool:
        return self.name in _axes(eqn)

    def _uses(self, eqn: JaxprEqn) -> bool:
        """Whether the equation, or a program in its parameters, has a collective over the axis."""
        programs: list[ClosedJaxpr | Jaxpr] = list(programs_in(eqn.params))
        return self._is_over(eqn) or any(
            self._uses(inner) for program in programs for inner in opened(program)[0].eqns
        )


def _axes(eqn: JaxprEqn) -> tuple[Any, ...]:
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def _is_opaque(eqn: JaxprEqn) -> bool:
    """Whether a program of the equation cannot be replaced: it has a derivative of its own, or is hidden."""
    hidden = (inside(x) is not None and not isinstance(x, PROGRAMS) for x in eqn.params.values())
    return has_own_jvp(eqn) or has_own_vjp(eqn) or any(hidden)
