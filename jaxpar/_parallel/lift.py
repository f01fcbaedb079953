"""lift: sums over the replicas, taken out of the branches of a switch.

In an uneven batch each device takes its own branch, so a collective inside a branch would wait for devices
that never reach it. A sum is special: zero is neutral. So every branch is cut into pieces at its sums. One
switch runs all first pieces; then every device, whichever branch it took, adds up the terms; a second switch
runs the second pieces, and so on. A device without rows adds zeros. Values that later pieces of a branch need
travel from switch to switch.

A branch must not depend on the number of replicas: over unequal ones a mean of means, or a count times the
number of devices, is silently wrong. To make sure, each branch is traced for two numbers of replicas, and the
two programs must be the same.

torch has no such problem, because its ranks run their own programs; its SyncBatchNorm gathers counts as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .._typing import REPLICA, Shape
from .._upstream import (
    PROGRAMS,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    called,
    has_own_jvp,
    jaxpr_as_fun,
    opened,
    part,
    rewritten,
)
from ..errors import CollectiveError
from .padding.derivatives import moves, with_tangents
from .same_program import programs_in, same_program

CURE = "Make B a multiple of the number of devices, or take the collective out of the module."


def communicates(what: ClosedJaxpr | Jaxpr | JaxprEqn) -> bool:
    """Whether a program, or any of its equations, sends anything to other replicas."""
    # JAX marks collectives with an effect, but not ppermute, and it marks axis_index, which sends nothing. So
    # the names of the axes are read from the parameters instead.
    if isinstance(what, PROGRAMS):
        return any(map(communicates, what.eqns))
    named = [what.params.get(key) for key in ("axes", "axis_name")]
    if what.primitive.name != "axis_index" and any(
        axis == REPLICA or (isinstance(axis, tuple) and REPLICA in axis) for axis in named
    ):
        return True
    return any(map(communicates, programs_in(what.params)))


def traced(f: Callable[..., Any], args: Sequence[Any], k: int) -> ClosedJaxpr:
    """Trace `f` as a program for one of k replicas that may have different numbers of rows."""
    program = jax.make_jaxpr(f, axis_env=[(REPLICA, k)])(*args)
    if communicates(program):
        _check_sums(program.jaxpr)
        # JAX folds the size of an axis into the program as a number, so it cannot be searched for. It shows
        # as a difference between the programs for k and for k + 1 replicas.
        other = jax.make_jaxpr(f, axis_env=[(REPLICA, k + 1)])(*args)
        if not same_program(program, other):
            raise CollectiveError(
                "parallel_apply: the module uses the number of replicas (pmean, psum of a number, axis_size, "
                "Flax's BatchNorm with axis_name) and the replicas have different numbers of rows: a mean of "
                "their means is not the mean of the rows. Sum arrays, and their counts as arrays, with "
                "jax.lax.psum; jaxpar.nn.SyncBatchNorm does. Or make B a multiple of the number of devices."
            )
    return program


def _check_sums(jaxpr: Jaxpr) -> None:
    for eqn in filter(communicates, jaxpr.eqns):
        program = called(eqn)
        # `_inline` opens calls, so that their sums can be cut out; loops and conditions stay closed.
        if program is not None:
            _check_sums(opened(program)[0])
        elif eqn.primitive.name != "psum":
            raise CollectiveError(
                f"parallel_apply: the module has a collective over replicas ({_names(eqn)}) and these have "
                "different numbers of rows, so they would wait for each other for ever: only sums can be "
                f"taken out of the replicas' programs, and not from loops and conditions. {CURE}"
            )
        elif tuple(eqn.params["axes"]) != (REPLICA,) or eqn.params["axis_index_groups"] is not None:
            raise CollectiveError(
                "parallel_apply: the module sums over groups of replicas or over other axes, and the "
                f"replicas have different numbers of rows. {CURE}"
            )


def switch(
    choice: jax.Array, branches: Sequence[ClosedJaxpr], operands: Sequence[jax.Array], k: int, idle: bool
) -> list[jax.Array]:
    """`jax.lax.switch` of branches, from `traced` if they sum; an `idle` last one adds zeros to every sum."""
    if not any(map(communicates, branches)):
        return jax.lax.switch(choice, [jaxpr_as_fun(branch) for branch in branches], *operands)

    @jax.custom_jvp
    def lifted(choice: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return _apply(choice, branches, operands, idle)

    def rule(primals: Any, tangents: Any) -> Any:
        # Differentiate first and cut afterwards. In the reverse order, a function with a custom_jvp that sums
        # (SyncBatchNorm's statistics) would be in pieces before its rule could be used.
        choice, *operands = primals
        # Only operands with a tangent are differentiated: integers and keys have none, and a program for
        # zeros would double the work.
        moving = [i for i, t in enumerate(tangents[1:]) if _moves(t)]
        inputs = [*operands, *(tangents[1 + i] for i in moving)]
        n = len(branches[0].out_avals)
        programs = [_tangent(branch, moving, inputs, k) for branch in branches]
        if any(map(_has_rule, programs)):
            # In two, since JAX takes a function with a rule as a whole: outputs that came out of one together
            # with their derivatives would be as unknown as these are when JAX linearizes.
            out = switch(choice, branches, operands, k, idle)
            programs = [rewritten(program, outvars=program.jaxpr.outvars[n:]) for program in programs]
            derivatives = switch(choice, programs, inputs, k, idle)
        else:  # nothing to keep a rule for, and jax.checkpoint cannot look into a function with one
            both = _apply(choice, programs, inputs, idle)
            out, derivatives = both[:n], both[n:]
        remaining = iter(derivatives)
        return out, [next(remaining) if moves(y) else np.zeros(y.shape, jax.dtypes.float0) for y in out]

    lifted.defjvp(rule, symbolic_zeros=True)
    return lifted(choice, *operands)


def _has_rule(program: ClosedJaxpr | Jaxpr) -> bool:
    """Whether a function with its own derivative rule sums over the replicas."""
    return any(
        has_own_jvp(eqn) or any(map(_has_rule, programs_in(eqn.params)))
        for eqn in filter(communicates, program.eqns)
    )


def _moves(tangent: jax.Array | SymbolicZero) -> bool:
    return not isinstance(tangent, SymbolicZero) and tangent.dtype != jax.dtypes.float0


def _tangent(branch: ClosedJaxpr, moving: list[int], inputs: Sequence[Any], k: int) -> ClosedJaxpr:
    """Return a program for the outputs, followed by the derivatives of the floating ones."""
    both = with_tangents(lambda operands: jaxpr_as_fun(branch)(*operands), len(branch.in_avals), moving)
    # `traced` checks the derivative as well: a rule may use the number of replicas, its function not.
    return traced(both, inputs, k)


@dataclass(frozen=True)
class _Cut:
    """One branch in pieces. Sums i follow piece i; nothing follows the last piece."""

    program: ClosedJaxpr
    pieces: list[list[JaxprEqn]]
    sums: list[list[JaxprEqn]]

    def reads(self, i: int) -> list[Any]:
        """The variables that piece i and its sums, or the outputs, read."""
        ends = self.sums[i] if i < len(self.sums) else [self.program.jaxpr]
        read = [v for eqn in self.pieces[i] for v in eqn.invars]
        read += [v for end in ends for v in (end.outvars if end is self.program.jaxpr else end.invars)]
        return list(dict.fromkeys(v for v in read if not isinstance(v, Literal)))

    def keeps(self, i: int) -> list[Any]:
        """The variables that piece i computes and later pieces read."""
        later = {v for j in range(i + 1, len(self.pieces)) for v in self.reads(j)}
        return [v for eqn in self.pieces[i] for v in eqn.outvars if v in later]


def _cut(branch: ClosedJaxpr, operands: Sequence[Any]) -> _Cut:
    """Put every equation into the first piece at which all its operands are known."""
    # Sums that do not depend on each other follow the same piece and are sent together. Traced once more, so
    # that called programs are inlined where they sum: a sum inside a call could not be cut out.
    program = jax.make_jaxpr(lambda *operands: _inline(branch, operands))(*operands)
    since: dict[Any, int] = {}
    pieces: list[list[JaxprEqn]] = [[]]
    sums: list[list[JaxprEqn]] = []
    for eqn in program.jaxpr.eqns:
        i = max((since.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        if communicates(eqn):
            if i == len(sums):
                sums.append([])
                pieces.append([])
            sums[i].append(eqn)
        else:
            pieces[i].append(eqn)
        since |= dict.fromkeys(eqn.outvars, i + communicates(eqn))
    return _Cut(program, pieces, sums)


def _inline(program: ClosedJaxpr | Jaxpr, operands: Sequence[Any]) -> list[Any]:
    """Evaluate a program equation by equation, with the communicating programs that it calls inlined."""
    jaxpr, consts = opened(program)
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "psum" or not communicates(eqn):
            _evaluate(jaxpr, [eqn], values)
            continue
        inner = called(eqn)
        assert inner is not None, "_check_sums has refused all others"
        out = _inline(inner, [_value(values, v) for v in eqn.invars])
        values |= dict(zip(eqn.outvars, out, strict=True))
    return [_value(values, v) for v in jaxpr.outvars]


def _names(eqn: JaxprEqn) -> str:
    """`all_gather`, or `psum in scan`."""
    for inner in programs_in(eqn.params):
        for e in filter(communicates, inner.eqns):
            return f"{_names(e)} in {eqn.primitive.name}"
    return eqn.primitive.name


def _value(values: dict[Any, Any], v: Any) -> Any:
    return v.val if isinstance(v, Literal) else values[v]


def _evaluate(jaxpr: Jaxpr, eqns: list[JaxprEqn], values: dict[Any, Any]) -> None:
    """Run some equations of a program on known values, and add their results to `values`."""
    # As a program of their own: evaluating equations one by one loses JAX's caches and takes far longer.
    outvars = [v for eqn in eqns for v in eqn.outvars]
    read = dict.fromkeys(v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))
    invars = [v for v in read if v not in set(outvars)]
    results = jaxpr_as_fun(part(jaxpr, eqns, invars, outvars))(*(values[v] for v in invars))
    values |= dict(zip(outvars, results, strict=True))


def _apply(
    choice: jax.Array, branches: Sequence[ClosedJaxpr], operands: Sequence[Any], idle: bool
) -> list[jax.Array]:
    cuts = [_cut(branch, operands) for branch in branches]
    n = len(cuts[0].sums)
    if idle:
        # What a device without rows returns depends on no sum, so it does everything in the last switch. Its
        # pieces before that are empty, and its terms zeros.
        cuts[-1] = _Cut(cuts[-1].program, [[] for _ in range(n)] + cuts[-1].pieces, [[] for _ in range(n)])
    _check_same(cuts[: len(cuts) - idle])
    environments = [dict(zip(cut.program.jaxpr.invars, operands, strict=True)) for cut in cuts]
    for i, sums in enumerate(cuts[0].sums):
        terms = [eqn.invars[0].aval for eqn in sums]
        carried = [cut.keeps(i) for cut in cuts]
        arrays = _switch(choice, cuts, environments, i, terms, carried)
        # Outside of every switch: each device passes here, with its terms or with zeros.
        sums = jax.lax.psum(arrays[: len(terms)], REPLICA)
        remaining = iter(arrays[len(terms) :])
        for cut, variables, environment in zip(cuts, carried, environments, strict=True):
            # Not strict: the branch of a device without rows has no sums.
            environment |= zip((eqn.outvars[0] for eqn in cut.sums[i]), sums, strict=False)
            environment |= {v: next(remaining) for v in variables}
    return _switch(choice, cuts, environments, n, [], [[]] * len(cuts))


def _check_same(cuts: Sequence[_Cut]) -> None:
    def signature(cut: _Cut) -> list[Any]:
        order = [eqn for eqn in cut.program.jaxpr.eqns if communicates(eqn)]
        aval = [eqn.invars[0].aval for eqn in order]
        after = {id(eqn): i for i, sums in enumerate(cut.sums) for eqn in sums}
        # Summands of different branches are paired by piece and by position, so both must agree.
        return [(after[id(eqn)], a.shape, a.dtype) for eqn, a in zip(order, aval, strict=True)]

    for cut in cuts[1:]:
        if signature(cut) != signature(cuts[0]):
            raise CollectiveError(
                "parallel_apply: the module sums over the replicas, and what it sums depends on the number "
                "of rows, which is not the same on all of them, so they would wait for each other for ever. "
                f"Sum over the rows first. {CURE}"
            )


def _switch(
    choice: jax.Array,
    cuts: Sequence[_Cut],
    environments: Sequence[dict[Any, Any]],
    i: int,
    terms: Sequence[Any],
    carried: Sequence[Sequence[Any]],
) -> list[jax.Array]:
    """Run piece i of every branch. Return its summands and carried values, or the last piece's outputs."""
    reads = [
        [v for v in cut.reads(i) if v in environment]
        for cut, environment in zip(cuts, environments, strict=True)
    ]

    def piece(j: int, arrays: list[list[JaxprEqn]]) -> list[Any]:
        cut = cuts[j]
        values = dict(zip(cut.program.jaxpr.constvars, cut.program.consts, strict=True))
        values |= zip(reads[j], arrays[j], strict=True)
        _evaluate(cut.program.jaxpr, cut.pieces[i], values)
        if i == len(cut.sums):
            return [_value(values, v) for v in cut.program.jaxpr.outvars]
        summands = [_value(values, eqn.invars[0]) for eqn in cut.sums[i]] or list(map(_nothing, terms))
        # Each branch has positions of its own for what it carries, which are zeros on devices that took a
        # different branch. Shared positions would save memory, but the derivative of a switch must know for
        # each position whether it depends on a tangent, and two branches differ in that.
        return summands + [
            values[v] if owner == j else _nothing(v.aval)
            for owner, variables in enumerate(carried)
            for v in variables
        ]

    pieces = [functools.partial(piece, j) for j in range(len(cuts))]
    arrays = [
        [environment[v] for v in variables]
        for environment, variables in zip(environments, reads, strict=True)
    ]
    return jax.lax.switch(choice, pieces, arrays)


def _nothing(of: jax.core.ShapedArray) -> jax.Array:
    return zeros(of.shape, of.dtype)


def zeros(shape: Shape, dtype: Any) -> jax.Array:
    """Return zeros; for random keys, which have no zero, valid keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(dtype)), shape)
    return jnp.zeros(shape, dtype)
