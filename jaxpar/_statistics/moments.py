"""Mean and variance for all normalisations: two passes, at least in float32, as in torch.

Flax's default variance, E[x^2] - E[x]^2, loses all digits when the mean is a thousand times the deviation.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from .._typing import REPLICA, Axis, ReplicaGroups


def widened(function: str, x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{function}: not implemented for {x.dtype}; pass floating-point numbers.")
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def global_count(
    x: jax.Array, mask: jax.Array | None, axes: tuple[int, ...], axis_name: Axis
) -> int | jax.Array:
    """Number of values in each mean, over all replicas; a Python int if nothing is masked or spread."""
    # Summed over the replicas, not multiplied by their number: rows may differ between them.
    if mask is None:
        count = math.prod(x.shape[i] for i in axes)
        return count if axis_name is None else _psum(jax.lax.full((), count, x.dtype), axis_name)
    reduced = math.prod(x.shape[i] for i in axes if mask.shape[i] == 1)
    return _psum(mask.sum(dtype=x.dtype) * reduced, axis_name)


def moments(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance over `axes`, which stay as axes of length 1."""
    return global_moments(x, None, float(math.prod(x.shape[i] for i in axes)), axes, None)


def _global_moments(
    x: jax.Array, mask: jax.Array | None, count: float | jax.Array, axes: tuple[int, ...], axis_name: Axis
) -> tuple[jax.Array, jax.Array]:
    """`moments` over the replicas as well, of the values under a mask; x is 0 where it is False."""
    n = jnp.maximum(count, 1)
    mean = _sum(x, axes, axis_name) / n
    return mean, _sum(_masked(jnp.square(x - mean), mask), axes, axis_name) / n


global_moments = jax.custom_jvp(_global_moments, nondiff_argnums=(3, 4))


@global_moments.defjvp
def _moments_jvp(axes: tuple[int, ...], axis_name: Axis, primals: Any, tangents: Any) -> Any:
    # By the chain rule the variance also depends on the mean, with a factor that is a sum of distances from
    # the mean: zero, but JAX would make one more pass over the data to compute zero.
    x, mask, count = primals
    mean, var = _global_moments(x, mask, count, axes, axis_name)
    # max(count, 1): a batch whose rows are all masked has the mean 0 and no gradient, not NaN.
    dx, n = _masked(tangents[0], mask), jnp.maximum(count, 1)
    return (mean, var), (_sum(dx, axes, axis_name) / n, _sum((x - mean) * dx, axes, axis_name) * (2 / n))


def _masked(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    return x if mask is None else jnp.where(mask, x, 0)


def _sum(x: jax.Array, axes: tuple[int, ...], axis_name: Axis) -> jax.Array:
    return _psum(x.sum(axes, keepdims=True), axis_name)


def _psum(x: jax.Array, axis_name: Axis) -> jax.Array:
    if axis_name is None:
        return x
    if not isinstance(axis_name, ReplicaGroups):
        return jax.lax.psum(x, axis_name)
    # A row for each group, and a sum over all: with `axis_index_groups` XLA would send less, but such a sum
    # cannot be taken out of the branches of an uneven batch.
    numbers = jnp.array(axis_name.numbers)
    group = numbers[jax.lax.axis_index(REPLICA)]
    rows = jnp.zeros((max(axis_name.numbers) + 1, *x.shape), x.dtype).at[group].set(x)
    return jax.lax.psum(rows, REPLICA)[group]


def standardize(
    x: jax.Array, mean: jax.Array, var: jax.Array, scale: jax.Array | None, bias: jax.Array | None, eps: float
) -> jax.Array:
    """(x - mean) / sqrt(var + eps) * scale + bias; None for a scale of 1 and a bias of 0."""
    factor = jax.lax.rsqrt(var.astype(jnp.promote_types(var.dtype, x.dtype)) + eps)
    # Combine the two small factors first, rather than multiply all of x twice.
    y = (x - mean) * (factor if scale is None else factor * scale)
    return y if bias is None else y + bias


def update_running(running: jax.Array, batch: jax.Array, momentum: float | jax.Array) -> jax.Array:
    """The running value after a batch, in the running value's type."""
    # A float16 running value is updated in the batch's float32 and rounded once.
    before = running.astype(jnp.promote_types(running.dtype, batch.dtype))
    return ((1 - momentum) * before + momentum * jax.lax.stop_gradient(batch)).astype(running.dtype)
