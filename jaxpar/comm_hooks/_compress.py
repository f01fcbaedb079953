"""Hooks that send gradients with 16 bits."""

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
        low = dataclasses.replace(bucket, gradients=[g.astype(dtype) for g in bucket.gradients])
        state, reduced = hook.reduce(state, low)
        return state, [r.astype(g.dtype) for r, g in zip(reduced, bucket.gradients, strict=True)]

    return CommHook(init, reduce)


def fp16_compress_wrapper(hook: CommHook) -> CommHook:
    """`hook` on gradients in float16; what it returns is cast back.

    torch counterpart: `fp16_compress_wrapper` (docs/semantics.md row H4).
    """
    return _wrap(jnp.float16, hook)


def bf16_compress_wrapper(hook: CommHook) -> CommHook:
    """`hook` on gradients in bfloat16; what it returns is cast back.

    torch counterpart: `bf16_compress_wrapper` (docs/semantics.md row H4).
    """
    return _wrap(jnp.bfloat16, hook)


# `allreduce` divides before the sum, which could overflow.
fp16_compress = fp16_compress_wrapper(allreduce)
"""The mean in float16: cast, divided, summed, cast back.

torch counterpart: `fp16_compress_hook` (docs/semantics.md row H3)."""

bf16_compress = bf16_compress_wrapper(allreduce)
"""The mean in bfloat16, likewise.

torch counterpart: `bf16_compress_hook` (docs/semantics.md row H3), which needs NCCL; this does not."""
