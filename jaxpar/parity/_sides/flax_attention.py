"""Attention in float64: `jax.nn.dot_product_attention` takes its softmax in float32 whatever its inputs are.

So does every `nnx.MultiHeadAttention`. In float64 that is an error of 1e-7, a thousand times the bound of a
difference in meaning, and hides any that is smaller. torch's softmax has its inputs' type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

_lock = threading.RLock()


@contextmanager
def softmax_in_float64() -> Iterator[None]:
    """Inside it the softmax of `jax.nn.dot_product_attention` has the type of float64 inputs."""
    with _lock:
        original = jax.nn.dot_product_attention
        jax.nn.dot_product_attention = _instead_of(original)
        try:
            yield
        finally:
            jax.nn.dot_product_attention = original


def _instead_of(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot_product_attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        scale: float | None = None,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        if query.dtype != jnp.float64 or query.ndim != 4 or any(x is not None for x in options.values()):
            return original(query, key, value, bias, mask, scale=scale, is_causal=is_causal, **options)
        return _attention(query, key, value, bias, mask, scale, is_causal)

    return dot_product_attention


def _attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    scale: float | None,
    is_causal: bool,
) -> jax.Array:
    """Of [B, T, N, H] to [B, S, K, H]. Each key has N/K queries; a row without keys is their plain mean."""
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    keep = jnp.ones((), bool) if mask is None else mask
    if is_causal:
        keep = keep & jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    # Not -inf: JAX gives a row without keys the same number everywhere.
    scores = jnp.where(keep, scores, -0.7 * jnp.finfo(jnp.float32).max)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)
