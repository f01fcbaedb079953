"""Random streams: one for every replica, made from the one that the module has."""

from __future__ import annotations

import jax


def fold(key: jax.Array, replica: jax.Array) -> jax.Array:
    """Return the stream of one replica, as torch's devices have their own (docs/semantics.md row 57)."""
    typed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    batch = key.ndim if typed else key.ndim - 1
    fold_in = jax.random.fold_in
    for _ in range(batch):
        fold_in = jax.vmap(fold_in, in_axes=(0, None))
    return fold_in(key, replica)
