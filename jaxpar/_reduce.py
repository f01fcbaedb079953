"""reduce: the replicas' trees become one tree, in one all-reduce.

Everything here is called once per replica, outside of every branch: a collective inside a branch
that only some replicas take would wait for the others for ever. Sums of arrays of one float type
are fused by XLA with the sum of the gradients; integers would be a second all-reduce, so small
ones (counters, generator keys) travel as floats, sixteen bits in each, which is exact.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ._typing import REPLICA, PyTree

_FEW = 1024


def from_replica_zero(tree: PyTree, index: jax.Array) -> PyTree:
    """Replica 0's values, on all replicas.

    torch broadcasts the buffers of device 0 at every forward and throws away what the other
    replicas did to theirs (torch-semantics 1.3 #39). A sum in which all but one term are zero is
    the same and, unlike a broadcast, joins the gradients' all-reduce.
    """
    return from_replica(0, tree, index)


def from_replica(source: int, tree: PyTree, index: jax.Array) -> PyTree:
    """The same with the values of replica `source`."""
    return jax.tree.map(functools.partial(_from, index == source), tree)


def _from(is_source: jax.Array, x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _from(is_source, jax.random.key_data(x))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return _pick(is_source, x)
    if x.dtype.itemsize <= 4 and x.size <= _FEW:
        return _decode(_pick(is_source, _encode(x)), x.dtype)
    if x.dtype == jnp.bool_:
        return _pick(is_source, x.astype(jnp.int32)).astype(x.dtype)
    return _pick(is_source, x)


def _pick(is_source: jax.Array, x: jax.Array) -> jax.Array:
    # where, not a product: another replica's NaN must not come through.
    return lax.psum(jnp.where(is_source, x, jnp.zeros_like(x)), REPLICA)


def _encode(x: jax.Array) -> jax.Array:
    bits = x.astype(jnp.uint32)
    return jnp.stack([bits >> 16, bits & 0xFFFF]).astype(jnp.result_type(float))


def _decode(halves: jax.Array, dtype: Any) -> jax.Array:
    high, low = halves.astype(jnp.uint32)
    return ((high << 16) | low).astype(dtype)
