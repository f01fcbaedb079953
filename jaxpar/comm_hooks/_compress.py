"""Hooks that send gradients with 16 bits."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from .._typing import PyTree
from .hook import Bucket, CommHook


def _compressed(dtype: Any, state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    # Divided before the sum, which could overflow.
    sums = bucket.sum([g.astype(dtype) / bucket.replicas for g in bucket.gradients])
    return state, [s.astype(g.dtype) for s, g in zip(sums, bucket.gradients, strict=True)]


def _wrapped(dtype: Any, hook: CommHook, state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    low = dataclasses.replace(bucket, gradients=[g.astype(dtype) for g in bucket.gradients])
    state, reduced = hook.reduce(state, low)
    return state, [r.astype(g.dtype) for r, g in zip(reduced, bucket.gradients, strict=True)]


def _wrap(dtype: Any, hook: CommHook) -> CommHook:
    def init(parameters: list[jax.Array]) -> PyTree:
        return hook.init([p.astype(dtype) for p in parameters])

    return CommHook(init, functools.partial(_wrapped, dtype, hook))


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


fp16_compress = CommHook(lambda parameters: (), functools.partial(_compressed, jnp.float16))
"""The mean in float16: cast, divided, summed, cast back.

torch counterpart: `fp16_compress_hook` (docs/semantics.md row H3)."""

bf16_compress = CommHook(lambda parameters: (), functools.partial(_compressed, jnp.bfloat16))
"""The mean in bfloat16, likewise.

torch counterpart: `bf16_compress_hook` (docs/semantics.md row H3), which needs NCCL; this does not."""
