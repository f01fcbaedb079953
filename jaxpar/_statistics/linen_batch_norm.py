"""Linen's BatchNorm with the statistics of all rows on all replicas, wherever in a model it is made.

Flax takes the mean of the replicas' means, which is not the mean of the batch when replicas have different
numbers of rows, and the layers of a compact method exist only while it runs. `linen.intercept_methods`
reaches them there. Flax still normalises: by the statistics that it is given as running ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from .._typing import AxisName
from .moments import global_count, global_moments

CALL = inspect.unwrap(linen.BatchNorm.__call__)
STATISTICS = "batch_stats"
MEAN, VARIANCE = "mean", "var"


class UnchangedType:
    """The type of UNCHANGED: the layer is to be called as Flax wrote it."""


UNCHANGED = UnchangedType()

AxisOf = Callable[[linen.BatchNorm], "AxisName | UnchangedType"]
"""The mesh axis of a layer's statistics; None for the rows that it is given."""


def over_all_rows(axis_of: AxisOf) -> AbstractContextManager[None]:
    """Return a context in which BatchNorm layers take their statistics over `axis_of(layer)`."""

    def interceptor(next_fun: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: Any) -> Any:
        layer = context.module
        # By the function: of a subclass, the call of its parent is taken, wherever it makes it.
        if getattr(context.orig_method, "func", None) is not CALL or layer.is_initializing():
            return next_fun(*args, **kwargs)
        return _normalized(layer, axis_of, next_fun, *args, **kwargs)

    return linen.intercept_methods(interceptor)


def over_replicas(axis: str) -> AbstractContextManager[None]:
    """Return a context in which an axis_name that no program binds means the axis of the replicas.

    `BatchNorm(axis_name="batch")`, written for a pmap, has named the replicas by it.
    """

    def axis_of(layer: linen.BatchNorm) -> AxisName | UnchangedType:
        name = layer.axis_name
        if name is None or (name != axis and is_bound(name)):
            return UNCHANGED
        return axis if is_bound(axis) else None  # one replica

    return over_all_rows(axis_of)


def is_bound(axis_name: AxisName) -> bool:
    """Whether this is traced in a program over a mesh axis, or a vmap, of that name."""
    try:
        jax.lax.axis_size(axis_name)
    except NameError:
        return False
    return True


def _normalized(
    layer: linen.BatchNorm,
    axis_of: AxisOf,
    flax_call: Callable[..., Any],
    x: jax.Array,
    use_running_average: bool | None = None,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Return `layer(x)`, with its statistics taken over the axis as well."""
    averaged = linen.merge_param("use_running_average", layer.use_running_average, use_running_average)
    axis = UNCHANGED if averaged or layer.axis_index_groups is not None else axis_of(layer)
    if isinstance(axis, UnchangedType):
        return flax_call(x, use_running_average, mask=mask)
    batch = dict(zip((MEAN, VARIANCE), _statistics(layer, x, axis, mask), strict=True))
    alone = layer.clone(parent=None, name=None, axis_name=None, use_running_average=True)
    y = alone.apply({**layer.variables, STATISTICS: batch}, x, method=linen.BatchNorm.__call__)
    for name, value in batch.items():
        running = layer.get_variable(STATISTICS, name)
        layer.put_variable(STATISTICS, name, layer.momentum * running + (1 - layer.momentum) * value)
    return y


def _statistics(
    layer: linen.BatchNorm, x: jax.Array, axis: AxisName, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The mean and the biased variance of each feature, in Flax's types."""
    dtype = jnp.result_type(x) if layer.dtype is None else jnp.dtype(layer.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    features = (layer.axis,) if isinstance(layer.axis, int) else layer.axis
    features = {axis % x.ndim for axis in features}
    axes = tuple(i for i in range(x.ndim) if i not in features)
    x = jnp.asarray(x, wide)
    if mask is None:
        count = 1.0 * global_count(x, None, axes, axis)
    else:
        mask = jnp.broadcast_to(mask, x.shape).astype(bool)
        x, count = jnp.where(mask, x, 0), mask.sum(axes, wide, keepdims=True)
        count = count if axis is None else jax.lax.psum(count, axis)
    moments = global_moments(x, mask, count, axes, axis)
    mean, variance = (jnp.squeeze(m, axes) for m in moments)
    if not layer.force_float32_reductions:
        return mean.astype(dtype), variance.astype(dtype)
    return mean, variance
