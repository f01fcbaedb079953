"""divided_program: a program for whole arrays, run by every device on a slice of their elements.

An optimizer's update is traced for whole arrays, as it was written. Operations that treat all elements alike
run on a device's elements unchanged, sums and extrema of whole arrays are completed over the devices, and
any other operation on divided arrays is an error. So a clipped norm is the norm of all
gradients, and an optimizer that needs whole rows or matrices is refused and never wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._parallel.padding.rules import ELEMENTWISE, highest, lowest
from .._typing import REPLICA, Shape
from .._upstream import ClosedJaxpr, Jaxpr, Literal, bound, called, opened
from ..errors import OptimizerError


@functools.partial(jax.tree_util.register_dataclass, data_fields=["elements"], meta_fields=["shape"])
@dataclasses.dataclass(frozen=True)
class Slice:
    """One device's elements [k] of an array: of N devices, device i holds its elements i * k to (i + 1) * k.

    Elements after the array's last one may be anything.
    """

    elements: Any
    shape: Shape  # the array's


@functools.partial(jax.tree_util.register_dataclass, data_fields=["scalar"], meta_fields=["shape"])
@dataclasses.dataclass(frozen=True)
class Filled:
    """An array that holds one number, which every device has."""

    scalar: Any
    shape: Shape


Operand = Any
"""A Slice, a Filled, or an array that is equal on all devices."""


def is_divided(shape: Shape) -> bool:
    """Whether an array of this shape is divided. A single number stays on all devices."""
    return math.prod(shape) > 1


def length(shape: Shape, n: int) -> int:
    """Return how many elements each of n devices holds."""
    return -(-math.prod(shape) // n)


def rows(x: Any, n: int, numpy: Any = jnp) -> Any:
    """Return an array's elements as [n, k], with zeros after the last one."""
    k = length(x.shape, n)
    return numpy.pad(numpy.ravel(x), (0, n * k - math.prod(x.shape))).reshape(n, k)


def sliced(x: Operand) -> Slice:
    """Return this device's elements of what all devices have."""
    if isinstance(x, Slice):
        return x
    n = jax.lax.psum(1, REPLICA)
    if isinstance(x, Filled):
        return Slice(jnp.full(length(x.shape, n), x.scalar), x.shape)
    return Slice(rows(x, n)[jax.lax.axis_index(REPLICA)], jnp.shape(x))


def whole(x: Operand) -> jax.Array:
    """Return an array that all devices have; the elements of all devices are collected."""
    if isinstance(x, Filled):
        return jnp.full(x.shape, x.scalar)
    if isinstance(x, Slice):
        collected = jax.lax.all_gather(x.elements, REPLICA, tiled=True)
        return collected[: math.prod(x.shape)].reshape(x.shape)
    return x


def run(program: ClosedJaxpr | Jaxpr, operands: Sequence[Operand]) -> list[Operand]:
    """Run a program for whole arrays on Slices. Raises OptimizerError for an equation without a rule."""
    jaxpr, consts = opened(program)
    values: dict[Any, Operand] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, operands, strict=True))

    def value(v: Any) -> Operand:
        return v.val if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        values |= dict(zip(eqn.outvars, _results(eqn, list(map(value, eqn.invars))), strict=True))
    return list(map(value, jaxpr.outvars))


def _results(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    name = eqn.primitive.name
    if not any(isinstance(x, Slice) for x in operands):
        if name == "broadcast_in_dim" and not _shape(operands[0]) and eqn.outvars[0].aval.shape:
            return [Filled(jnp.asarray(operands[0], eqn.outvars[0].aval.dtype), eqn.outvars[0].aval.shape)]
        return bound(eqn, list(map(whole, operands)))
    program = called(eqn)
    if program is not None:
        return run(program, operands)
    if name in ELEMENTWISE:
        return _elementwise(eqn, operands)
    rule = RULES.get(name)
    if rule is None:
        raise _refused(eqn, operands)
    return rule(eqn, operands)


def _unchanged(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    """A constraint on a sharding, which has no effect in a program for one device."""
    return operands


def _elementwise(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    shapes = [v.aval.shape for v in eqn.outvars]
    if eqn.primitive.name == "optimization_barrier":  # operands of any shapes, which are its results
        elements = bound(eqn, [x.elements if isinstance(x, Slice) else whole(x) for x in operands])
        pairs = zip(elements, operands, strict=True)
        return [Slice(e, x.shape) if isinstance(x, Slice) else e for e, x in pairs]
    k = next(x.elements.size for x in operands if isinstance(x, Slice))
    shape = shapes[0]
    if any(s != shape for s in shapes) or any(_shape(x) not in ((), shape) for x in operands):
        raise _refused(eqn, operands)
    local = [
        sliced(x).elements if _shape(x) else jnp.full(k, x, v.aval.dtype)
        for x, v in zip(operands, eqn.invars, strict=True)
    ]
    return [Slice(x, shape) for x in bound(eqn, local)]


def _shape(x: Operand) -> Shape:
    return x.shape if isinstance(x, (Slice, Filled)) else np.shape(x)


def _reduction(
    combine: Callable[[Any, str], jax.Array], neutral: Callable[[Any], Any]
) -> Callable[[Any, list[Operand]], Sequence[Operand]]:
    def rule(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
        (x,) = operands
        if len(eqn.params["axes"]) < len(x.shape):
            raise _refused(eqn, operands)
        local = getattr(jnp, _LOCAL[eqn.primitive.name])(_masked(x, neutral(x.elements.dtype)))
        dtype = eqn.outvars[0].aval.dtype
        if jnp.issubdtype(dtype, jnp.bool_):
            return [combine(local.astype(jnp.int32), REPLICA).astype(bool)]
        return [combine(local.astype(dtype), REPLICA)]

    return rule


def _extreme(combine: Callable[[Any, str], jax.Array]) -> Callable[[Any, str], jax.Array]:
    def of_all(x: jax.Array, axis: str) -> jax.Array:
        extreme = combine(x, axis)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return extreme
        # XLA's maximum over devices may lose a nan, and a sum does not.
        return extreme + jax.lax.psum(jnp.where(jnp.isnan(x), x, 0), axis)

    return of_all


_LOCAL = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "all",
    "reduce_or": "any",
}


def _masked(x: Slice, neutral: Any) -> jax.Array:
    """Return a device's elements with a neutral number after the array's last one."""
    n, k = jax.lax.psum(1, REPLICA), x.elements.size
    size = math.prod(x.shape)
    if n * k == size:
        return x.elements
    at = jax.lax.axis_index(REPLICA) * k + jnp.arange(k)
    return jnp.where(at < size, x.elements, jnp.asarray(neutral, x.elements.dtype))


def _product(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    """A dot product of two arrays of one axis."""
    if any(len(_shape(x)) != 1 for x in operands) or eqn.outvars[0].aval.shape:
        raise _refused(eqn, operands)
    one, other = map(sliced, operands)
    dtype = eqn.outvars[0].aval.dtype
    products = one.elements.astype(dtype) * other.elements.astype(dtype)
    return [jax.lax.psum(jnp.sum(_masked(Slice(products, one.shape), 0)), REPLICA)]


def _reshape(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    """The same elements in the same order."""
    shape = eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape":
        raise _refused(eqn, operands)
    if math.prod(shape) != math.prod(operands[0].shape):  # a broadcast to more elements
        raise _refused(eqn, operands)
    return [Slice(operands[0].elements, shape)]


def _cond(eqn: Any, operands: list[Operand]) -> Sequence[Operand]:
    """All devices take the same branch, since the choice is a number that all have."""
    choice, *arguments = operands
    if isinstance(choice, Slice):
        raise _refused(eqn, operands)
    branches = eqn.params["branches"]
    kinds = [jax.eval_shape(functools.partial(run, branch), arguments) for branch in branches]
    divided = [any(isinstance(x, Slice) for x in results) for results in zip(*kinds, strict=True)]

    def branch_of(program: ClosedJaxpr) -> Callable[[list[Operand]], list[Operand]]:
        def branch(arguments: list[Operand]) -> list[Operand]:
            pairs = zip(run(program, arguments), divided, strict=True)
            return [sliced(x) if d else whole(x) for x, d in pairs]

        return branch

    results: list[Operand] = jax.lax.switch(choice, list(map(branch_of, branches)), arguments)
    return results


RULES: dict[str, Callable[[Any, list[Operand]], Sequence[Operand]]] = {
    "broadcast_in_dim": _reshape,
    "cond": _cond,
    "dot_general": _product,
    "expand_dims": _reshape,
    "reduce_and": _reduction(jax.lax.pmin, lambda dtype: True),
    "reduce_max": _reduction(_extreme(jax.lax.pmax), lowest),
    "reduce_min": _reduction(_extreme(jax.lax.pmin), highest),
    "reduce_or": _reduction(jax.lax.pmax, lambda dtype: False),
    "reduce_sum": _reduction(jax.lax.psum, lambda dtype: 0),
    "reshape": _reshape,
    "reshard": _unchanged,
    "sharding_constraint": _unchanged,
    "squeeze": _reshape,
}


def _refused(eqn: Any, operands: list[Operand]) -> OptimizerError:
    shapes = ", ".join(dict.fromkeys(str(list(_shape(x))) for x in operands if _shape(x)))
    return OptimizerError(
        "train_step: shard_optimizer=True divides each array of the optimizer between the replicas, and the "
        f"optimizer computes {eqn.primitive.name} of {shapes}, for which a replica needs more than its "
        "elements. SGD, Adam, AdamW, LAMB and others that treat all elements alike, or take norms of whole "
        "arrays, can be divided. Use one of these, or leave shard_optimizer out."
    )
