"""Hooks that send gradients uncompressed, or not at all.

torch splits gradients into buckets of 25 MiB (docs/semantics.md row D19). Here all gradients form one
message, together with the loss and the buffers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._typing import PyTree
from .hook import Bucket, CommHook


def _no_state(parameters: list[jax.Array]) -> PyTree:
    del parameters
    return ()


def _mean(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    # Scaled before the sum, like torch. 1/W is rounded to the gradient's dtype before the product.
    return state, bucket.sum([g * jnp.asarray(1 / bucket.replicas, g.dtype) for g in bucket.gradients])


# XLA compiles the division to a product with 1/W, so the bits are the same: a separate function, because its
# expression is torch's `allreduce_hook`.
def _sum_of_quotients(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    return state, bucket.sum([g / bucket.replicas for g in bucket.gradients])


def _unreduced(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    return state, bucket.gradients


mean = CommHook(_no_state, _mean)
"""The default. torch counterpart: DistributedDataParallel without a hook (docs/semantics.md row D4)."""

allreduce = CommHook(_no_state, _sum_of_quotients)
"""The mean by division, bit-identical to the default; torch's `allreduce_hook` (docs/semantics.md row H2)."""

noop = CommHook(_no_state, _unreduced)
"""No reduction, to measure the cost of communication; torch's `noop_hook` (docs/semantics.md row H8)."""
