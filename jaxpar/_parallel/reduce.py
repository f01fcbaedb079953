"""reduce: the replicas' trees become one tree, in one all-reduce.

XLA fuses sums of one float type with the sum of the gradients. Integers would be a second all-reduce, so
small ones (counters, generator keys) travel as floats, sixteen bits in each, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._tree import is_key
from .._typing import REPLICA, PyTree

_FEW = 1024  # in elements; larger integer arrays are rare, and are sent as they are


def from_replica_zero(tree: PyTree, index: jax.Array) -> PyTree:
    """Return replica 0's values, on all replicas, as torch does (docs/semantics.md row 39)."""
    terms, rebuild = terms_of(0, tree, index)
    return rebuild([lax.psum(term, REPLICA) for term in terms])


def terms_of(
    source: int, tree: PyTree, index: jax.Array
) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], PyTree]]:
    """Return terms to be summed, floats except for large integers, and a function from sums to the tree."""
    leaves = jax.tree.leaves(tree)
    form = jax.tree.structure(tree)
    # where, not a product: another replica's NaN must not come through.
    terms = [jnp.where(index == source, term, jnp.zeros_like(term)) for term in map(_encode, leaves)]

    def rebuild(sums: Sequence[jax.Array]) -> PyTree:
        return jax.tree.unflatten(form, [_decode(s, x) for s, x in zip(sums, leaves, strict=True)])

    return terms, rebuild


def _is_halved(x: jax.Array) -> bool:
    return not jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize <= 4 and x.size <= _FEW


def _encode(x: jax.Array) -> jax.Array:
    if is_key(x):
        return _encode(jax.random.key_data(x))
    if _is_halved(x):
        bits = x.astype(jnp.uint32)
        return jnp.stack([bits >> 16, bits & 0xFFFF]).astype(jnp.result_type(float))
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def _decode(total: jax.Array, x: jax.Array) -> jax.Array:
    """Return `total` in the dtype and form of x."""
    if is_key(x):
        data = _decode(total, jax.random.key_data(x))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    if _is_halved(x):
        high, low = total.astype(jnp.uint32)
        return ((high << 16) | low).astype(x.dtype)
    return total.astype(x.dtype)
