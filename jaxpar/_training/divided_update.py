"""divided_update: what surrounds an update of divided arrays (ZeRO-1), and which arrays are divided."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._typing import REPLICA, PyTree, Shape
from ..comm_hooks import CommHook, allreduce, mean
from ..comm_hooks.hook import SMALL, Bucket
from ..errors import OptimizerError
from .divided_program import Filled, Operand, Slice, is_divided, length, rows, run, sliced, whole
from .optimizer_calls import Evaluation


def reduced(hook: CommHook, state: PyTree, bucket: Bucket) -> tuple[PyTree, list[Operand]]:
    """Return a hook's next state, and this device's elements of the gradients that it would return."""
    gradients = bucket.gradients
    if hook not in (mean, allreduce):
        # Any reduction, which returns whole gradients: half as many bytes more than a reduce-scatter sends.
        state, gradients = hook.reduce(state, bucket)
        return state, [sliced(g) if is_divided(g.shape) else g for g in gradients]
    scaled = [g * jnp.asarray(1 / bucket.replicas, g.dtype) for g in gradients]
    summed: list[Operand] = list(scaled)
    single = [i for i, g in enumerate(scaled) if not is_divided(g.shape)]
    for i, x in zip(single, bucket.sum([scaled[i] for i in single]), strict=True):
        summed[i] = x
    n = jax.lax.psum(1, REPLICA)
    for group in _groups(scaled, set(single), bucket.message.flat):
        stack = jnp.concatenate([rows(scaled[i], n) for i in group], axis=1)
        elements = jax.lax.psum_scatter(stack, REPLICA)
        for i, x in zip(group, _split(elements, [length(scaled[i].shape, n) for i in group]), strict=True):
            summed[i] = Slice(x, scaled[i].shape)
    return state, summed


def collected(values: list, flat: bool) -> list:
    """Return values with whole arrays for Slices; `flat`: small ones of one type are sent together."""
    after = list(values)
    others = {i for i, x in enumerate(values) if not isinstance(x, Slice)}
    arrays = [x.elements if isinstance(x, Slice) else x for x in values]
    for group in _groups(arrays, others, flat):
        stack = jax.lax.all_gather(jnp.concatenate([arrays[i] for i in group]), REPLICA)
        for i, x in zip(group, _split(stack, [arrays[i].size for i in group]), strict=True):
            after[i] = x.reshape(-1)[: math.prod(values[i].shape)].reshape(values[i].shape)
    return after


def _groups(arrays: Sequence[Any], others: set[int], flat: bool) -> list[list[int]]:
    """Return the numbers of arrays that are sent together, without `others`."""
    groups: dict[Any, list[int]] = {}
    for i, x in enumerate(arrays):
        if i not in others:
            groups.setdefault(x.dtype if flat and x.nbytes < SMALL else i, []).append(i)
    return list(groups.values())


def _split(x: jax.Array, lengths: Sequence[int]) -> list[jax.Array]:
    """Cut an array's last axis."""
    return jnp.split(x, np.cumsum(lengths)[:-1], axis=-1)


def smallest(number: jax.Array, none: int) -> jax.Array:
    """Return the smallest number of any device but `none`, or `none`."""
    largest = jnp.iinfo(number.dtype).max
    first = jax.lax.pmin(jnp.where(number == none, largest, number), REPLICA)
    return jnp.where(first == largest, none, first)


def divided_advance(
    advance: Callable[..., tuple[list, list]], evaluation: Evaluation | None
) -> Callable[..., tuple[list, list]]:
    """Return `Update.advance` as a function of Slices, which returns Slices where results depend on any."""

    def shape(x: Operand) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.elements.dtype if isinstance(x, Slice) else x.dtype)

    def on_slices(values: list, optimizer: list, gradients: list, changes: dict[int, Any]) -> Any:
        leaves, form = jax.tree.flatten((values, optimizer, gradients, changes), is_leaf=is_operand)
        program, results = jax.make_jaxpr(
            functools.partial(advance, evaluation=evaluation), return_shape=True
        )(*jax.tree.unflatten(form, map(shape, leaves)))
        after = [whole(x) if isinstance(x, Filled) else x for x in run(program, leaves)]
        return jax.tree.unflatten(jax.tree.structure(results), after)

    return on_slices


def is_operand(x: object) -> bool:
    return isinstance(x, Slice)


def divided_shapes(
    advance: Callable[..., tuple[list, list]],
    parameters: Sequence[int],
    values: list,
    optimizer_values: list,
    n: int,
) -> tuple[Shape | None, ...]:
    """Return the shapes of the optimizer's values that are divided: those that belong to single elements.

    Raises OptimizerError where an element's update depends on others in a way that has no rule.
    """
    trained = {values[i].shape for i in parameters}

    def of_elements(x: Any) -> Shape | None:
        fits = getattr(x, "shape", None) in trained and jnp.issubdtype(x.dtype, jnp.inexact)
        return x.shape if fits and is_divided(x.shape) else None

    def results(divided: tuple[Shape | None, ...], values: list, optimizer: list) -> list:
        values = list(values)
        for i in parameters:
            values[i] = sliced(values[i]) if is_divided(values[i].shape) else values[i]
        pairs = zip(optimizer, divided, strict=True)
        optimizer = [x if shape is None else sliced(x) for x, shape in pairs]
        return divided_advance(advance, None)(values, optimizer, [values[i] for i in parameters], {})[1]

    def settled(divided: tuple[Shape | None, ...]) -> tuple[Shape | None, ...]:
        """Return the shapes of `divided`, and of all values that become Slices where these are Slices."""
        while True:
            # A new function in every turn, because JAX remembers what a function was traced to.
            turn = functools.partial(results, divided)
            trace = jax.make_jaxpr(turn, axis_env=[(REPLICA, n)], return_shape=True)
            pairs = zip(trace(values, optimizer_values)[1], divided, strict=True)
            previous, divided = divided, tuple(x.shape if isinstance(x, Slice) else s for x, s in pairs)
            if divided == previous:
                return divided

    try:
        return settled(tuple(map(of_elements, optimizer_values)))
    except OptimizerError:
        # An array that has a parameter's shape by chance, such as one rate for each row.
        return settled((None,) * len(optimizer_values))
