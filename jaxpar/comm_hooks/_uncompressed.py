"""Hooks that send what there is.

torch cuts gradients into buckets of 25 MiB, so that communicating can begin before the backward pass has
ended (docs/semantics.md row D19). Here all of them are one message, with the loss and the buffers.
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
    # Scaled first and summed then; 1/W is rounded before it multiplies, in the gradient's dtype.
    return state, bucket.sum([g * jnp.asarray(1 / bucket.replicas, g.dtype) for g in bucket.gradients])


def _sum_of_quotients(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    return state, bucket.sum([g / bucket.replicas for g in bucket.gradients])


def _unreduced(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    return state, bucket.gradients


mean = CommHook(_no_state, _mean)
"""The default. torch counterpart: DistributedDataParallel without a hook (docs/semantics.md row D4)."""

allreduce = CommHook(_no_state, _sum_of_quotients)
"""The mean by division, of which XLA makes a product with 1/W: the bits are those of the default.

torch counterpart: `allreduce_hook` (docs/semantics.md row H2)."""

noop = CommHook(_no_state, _unreduced)
"""Nothing is sent, so replicas part: only for measuring what communication costs.

torch counterpart: `noop_hook` (docs/semantics.md row H8)."""
