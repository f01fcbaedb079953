"""Hooks that send gradients as they are, as 16-bit floats, or not at all.

torch splits gradients into buckets of 25 MiB (docs/semantics.md row D19). Here all gradients form one
message, together with the loss and the buffers.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

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


def _wrap(dtype: DTypeLike, hook: CommHook) -> CommHook:
    def init(parameters: list[jax.Array]) -> PyTree:
        return hook.init([p.astype(dtype) for p in parameters])

    def reduce(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
        # Cast before the hook, so that the wrapped hook communicates and computes in 16 bits.
        low = dataclasses.replace(bucket, gradients=[g.astype(dtype) for g in bucket.gradients])
        state, reduced = hook.reduce(state, low)
        return state, [r.astype(g.dtype) for r, g in zip(reduced, bucket.gradients, strict=True)]

    return CommHook(init, reduce)


def fp16_compress_wrapper(hook: CommHook) -> CommHook:
    """Run `hook` on gradients cast to float16, and cast its result back.

    torch counterpart: `fp16_compress_wrapper` (docs/semantics.md row H4).

    >>> import jax.numpy as jnp
    >>> from jaxpar.comm_hooks import fp16_compress_wrapper, powersgd
    >>> state = fp16_compress_wrapper(powersgd()).init([jnp.ones((64, 32))])
    >>> state.errors[0].dtype
    dtype('float16')
    """
    return _wrap(jnp.float16, hook)


def bf16_compress_wrapper(hook: CommHook) -> CommHook:
    """Run `hook` on gradients cast to bfloat16, and cast its result back.

    torch counterpart: `bf16_compress_wrapper` (docs/semantics.md row H4).

    >>> import jax.numpy as jnp
    >>> from jaxpar.comm_hooks import bf16_compress_wrapper, powersgd
    >>> state = bf16_compress_wrapper(powersgd()).init([jnp.ones((64, 32))])
    >>> state.queries[0].dtype, state.queries[0].shape
    (dtype(bfloat16), (64, 1))
    """
    return _wrap(jnp.bfloat16, hook)


# `allreduce`, because it divides before the sum, which could overflow in float16.
fp16_compress = fp16_compress_wrapper(allreduce)
"""The mean in float16: cast, divided, summed, cast back, as torch's `fp16_compress_hook` (row H3)."""

bf16_compress = bf16_compress_wrapper(allreduce)
"""The mean in bfloat16, as torch's `bf16_compress_hook` (docs/semantics.md row H3), which needs NCCL."""
