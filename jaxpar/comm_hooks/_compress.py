"""Hooks that send gradients as 16-bit floats."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._typing import PyTree
from ._uncompressed import allreduce
from .hook import Bucket, CommHook


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
