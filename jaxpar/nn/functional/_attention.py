"""Attention with torch's masks.

As in torch, True means that a key takes part in `scaled_dot_product_attention`, and that it is blocked in
`multi_head_attention_forward`. A query whose keys are all blocked gets the output 0, but weights of NaN, as
softmax leaves them, where the weights are returned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._dropout import Key, dropout


def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout_key: Key | None = None,
) -> jax.Array:
    """softmax(query key^T * scale + mask) value, over the last two axes.

    Args:
      query: [..., H, L, E]. key: [..., H, S, E]. value: [..., H, S, Ev].
      attn_mask: broadcasts to [..., H, L, S]; True for keys that take part, or floats to add.
      dropout_p: the rate at which weights are dropped; needs `dropout_key`. Unlike the layers, this function
        has no training mode.
      is_causal: query i sees keys 0 to i, counted from the first key even if L is not S.
      scale: 1 / sqrt(E) if left out.
      enable_gqa: whether keys and values may have fewer heads, a divisor of H.

    Returns: [..., H, L, Ev]; 0 where a query has no key. Raises: RuntimeError: a mask together with
    `is_causal`, a mask of integers, heads that do not divide.

    torch counterpart: `torch.nn.functional.scaled_dot_product_attention`. Source:
    aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if enable_gqa:
        key, value = (_repeated(x, query.shape[-3], name) for x, name in ((key, "key"), (value, "value")))
    scores = _scores(query, key, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -jnp.inf)
    # Without a mask each query sees key 0 at least, with is_causal too, so no row of scores is all -inf.
    if attn_mask is None:
        weights = jax.nn.softmax(scores)
    else:
        scores = _masked(scores, attn_mask)
        # softmax gives NaN for a row of -inf, in its gradient as well, even where the result is not selected.
        # So such rows are computed from zeros and replaced.
        alone = (scores == -jnp.inf).all(-1, keepdims=True)
        weights = jnp.where(alone, 0, jax.nn.softmax(jnp.where(alone, 0, scores)))
    return dropout(weights, dropout_p, key=dropout_key) @ value


def _repeated(x: jax.Array, H: int, name: str) -> jax.Array:
    if H % x.shape[-3]:
        raise RuntimeError(
            "scaled_dot_product_attention: Number of heads in key and value must divide the number of heads "
            f"in query: {name} has {x.shape[-3]}, query {H}"
        )
    # Neighbouring heads of queries share a head of keys, as with torch's repeat_interleave.
    return jnp.repeat(x, H // x.shape[-3], axis=-3)


def _scores(query: jax.Array, key: jax.Array, scale: float) -> jax.Array:
    # torch scales the query, not the scores, which would round differently.
    return (query * scale) @ key.swapaxes(-1, -2)


def _masked(scores: jax.Array, mask: ArrayLike) -> jax.Array:
    mask = jnp.asarray(mask)
    if mask.dtype == bool:
        # Added, not selected, as in torch: so the scores of a query without keys get NaN as their gradient.
        return scores + jnp.where(mask, 0, -jnp.inf).astype(scores.dtype)
    if not jnp.issubdtype(mask.dtype, jnp.floating):
        raise RuntimeError(f"Expected attn_mask dtype to be bool or float, but got {mask.dtype}")
    return scores + mask.astype(scores.dtype)


def multi_head_attention_forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    num_heads: int,
    params: Mapping[str, jax.Array],
    *,
    add_zero_attn: bool = False,
    dropout_p: float = 0.0,
    training: bool = True,
    key_padding_mask: ArrayLike | None = None,
    need_weights: bool = True,
    attn_mask: ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    batch_first: bool = False,
    dropout_key: Key | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Projections, attention by heads, projection. L queries, S keys, E = num_heads * head width.

    Args:
      query: [L, B, E]. key: [S, B, Ek]. value: [S, B, Ev]. B comes first with `batch_first`, or not at all.
      num_heads: H, a divisor of E.
      params: arrays by torch's names: in_proj_weight [E, 3E], or q_proj_weight [E, E], k_proj_weight [Ek, E]
        and v_proj_weight [Ev, E]; out_proj_weight [E, E]; where there are any, in_proj_bias [3E],
        out_proj_bias [E], bias_k and bias_v [1, 1, E].
      add_zero_attn: adds a key and a value of zeros.
      dropout_p: the rate at which weights are dropped, in `training` only; needs `dropout_key`.
      key_padding_mask: [B, S] or [S]; True for keys that are blocked, or floats to add.
      need_weights: whether the weights are returned, which costs memory.
      attn_mask: [L, S] or [B*H, L, S]; True for keys that are blocked, or floats to add.
      average_attn_weights: whether the weights returned are the mean over the heads.
      is_causal: a hint that `attn_mask`, which must be given, is the causal one. As in torch, the mask is
        then ignored if no weights are needed and there is no key_padding_mask.

    Returns: The output, [L, B, E] (as the queries), and the weights, [B, L, S] or [B, H, L, S] (without B for
    inputs without a batch), or None. S counts the keys that bias_k and add_zero_attn add. Raises: ValueError:
    shapes that do not fit, where torch asserts. RuntimeError: as torch.

    torch counterpart: `torch.nn.functional.multi_head_attention_forward`. Source: torch/nn/functional.py.
    """
    batched = _check_ranks(query, key, value, key_padding_mask, attn_mask)
    q, k, v = _projected(query, key, value, num_heads, params)
    # Only now to [B, L, E]: transposed earlier, one array given three times would be three arrays, which
    # could not share a product.
    if not batched:
        q, k, v = q[None], k[None], v[None]
    elif not batch_first:
        q, k, v = q.swapaxes(0, 1), k.swapaxes(0, 1), v.swapaxes(0, 1)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    B, L, E = q.shape
    if k.shape[0] != B:
        raise RuntimeError(
            f"multi_head_attention_forward: query has a batch of {B}, but key and value {k.shape[0]}"
        )
    # Only under these conditions does torch use the hint in place of the mask.
    is_causal = is_causal and key_padding_mask is None and not need_weights
    allowed = _merged(None if is_causal else attn_mask, key_padding_mask, (B, num_heads, L, k.shape[1]))
    # bias_kv and zero_attn append keys, which no mask blocks.
    extra = []
    if "bias_k" in params:
        extra.append((params["bias_k"], params["bias_v"]))
    if add_zero_attn:
        extra.append((jnp.zeros((1, 1, E), k.dtype),) * 2)
    for key_row, value_row in extra:
        k = jnp.concatenate([k, jnp.broadcast_to(key_row, (B, 1, E))], axis=1)
        v = jnp.concatenate([v, jnp.broadcast_to(value_row, (B, 1, E))], axis=1)
    # Appended keys are always visible: True in a boolean mask, 0 in a mask that is added.
    if allowed is not None and extra:
        fill = True if allowed.dtype == bool else 0
        allowed = jnp.pad(allowed, [(0, 0)] * 3 + [(0, len(extra))], constant_values=fill)
    q, k, v = (x.reshape(B, -1, num_heads, E // num_heads).swapaxes(1, 2) for x in (q, k, v))
    rate = dropout_p if training else 0.0  # scaled_dot_product_attention has no training mode
    weights = None
    # torch has a second path for this case, which leaves NaN for queries without keys.
    if need_weights:
        scores = _scores(q, k, 1 / math.sqrt(q.shape[-1]))
        weights = jax.nn.softmax(scores if allowed is None else _masked(scores, allowed))
        weights = dropout(weights, rate, key=dropout_key)
        heads = weights @ v
    else:
        heads = scaled_dot_product_attention(q, k, v, allowed, rate, is_causal, dropout_key=dropout_key)
    output = heads.swapaxes(1, 2).reshape(B, L, E) @ params["out_proj_weight"]
    if "out_proj_bias" in params:
        output = output + params["out_proj_bias"]
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        return output[0], None if weights is None else weights[0]
    return output if batch_first else output.swapaxes(0, 1), weights


def _check_ranks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    key_padding_mask: ArrayLike | None,
    attn_mask: ArrayLike | None,
) -> bool:
    """Whether there is a batch axis."""
    n = query.ndim
    if n not in (2, 3):
        raise ValueError(f"query should be unbatched 2D or batched 3D tensor but received {n}-D query tensor")
    kind = "batched (3-D)" if n == 3 else "unbatched (2-D)"
    if key.ndim != n or value.ndim != n:
        raise ValueError(
            f"For {kind} `query`, expected `key` and `value` to be {n}-D but found {key.ndim}-D and "
            f"{value.ndim}-D tensors respectively"
        )
    if key_padding_mask is not None and np.ndim(key_padding_mask) != n - 1:
        raise ValueError(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {n - 1}-D but found "
            f"{np.ndim(key_padding_mask)}-D tensor instead"
        )
    if attn_mask is not None and np.ndim(attn_mask) not in (2, 3):
        raise ValueError(
            f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
            f"{np.ndim(attn_mask)}-D tensor instead"
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"key's sequence and batch dims {key.shape[:-1]} do not match value's {value.shape[:-1]}"
        )
    return n == 3


def _projected(
    query: jax.Array, key: jax.Array, value: jax.Array, num_heads: int, params: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries, keys and values, [..., E]; inputs that are the same object share one product."""
    E = params["out_proj_weight"].shape[0]
    if query.shape[-1] != E:
        raise ValueError(f"was expecting embedding dimension of {E}, but got {query.shape[-1]}")
    if E % num_heads:
        raise ValueError(f"embed_dim {E} not divisible by num_heads {num_heads}")
    if "in_proj_weight" in params and key.shape[-1] != E:
        raise RuntimeError(f"was expecting key and value dimension of {E}, but got {key.shape[-1]}")
    biases = jnp.split(params["in_proj_bias"], 3) if "in_proj_bias" in params else [None] * 3
    if "in_proj_weight" not in params:
        weights = [params[f"{letter}_proj_weight"] for letter in "qkv"]
        q, k, v = (x @ w for x, w in zip((query, key, value), weights, strict=True))
    elif key.shape != value.shape:
        raise ValueError(f"key shape {key.shape} does not match value shape {value.shape}")
    elif query is key and key is value:
        q, k, v = jnp.split(query @ params["in_proj_weight"], 3, axis=-1)
    elif key is value:
        w = params["in_proj_weight"]
        q, (k, v) = query @ w[:, :E], jnp.split(key @ w[:, E:], 2, axis=-1)
    else:
        weights = jnp.split(params["in_proj_weight"], 3, axis=1)
        q, k, v = (x @ w for x, w in zip((query, key, value), weights, strict=True))
    q, k, v = (x if b is None else x + b for x, b in zip((q, k, v), biases, strict=True))
    return q, k, v


def _merged(
    attn_mask: ArrayLike | None, key_padding_mask: ArrayLike | None, shape: tuple[int, int, int, int]
) -> jax.Array | None:
    """Both masks as one, 4-d: True for keys that take part, or floats to add."""
    B, H, L, S = shape
    masks = []
    if attn_mask is not None:
        mask = _checked(attn_mask, "attn_mask")
        expected = (L, S) if mask.ndim == 2 else (B * H, L, S)
        if mask.shape != expected:
            raise RuntimeError(
                f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be {expected}."
            )
        masks.append(mask[None, None] if mask.ndim == 2 else mask.reshape(shape))
    if key_padding_mask is not None:
        mask = jnp.atleast_2d(_checked(key_padding_mask, "key_padding_mask"))
        if mask.shape != (B, S):
            raise ValueError(f"Expected key_padding_mask of shape {(B, S)}, but got {mask.shape}")
        masks.append(mask[:, None, None])
    if not masks:
        return None
    if all(mask.dtype == bool for mask in masks):
        # torch's mask is True where blocked, scaled_dot_product_attention's True where allowed. masks[-1] is
        # masks[0] again if there is only one.
        return ~(masks[0] | masks[-1])
    # A float and a boolean mask: the boolean one becomes -inf, as in torch's _canonical_mask.
    added = [jnp.where(mask, -jnp.inf, 0.0) if mask.dtype == bool else mask for mask in masks]
    return sum(added[1:], added[0])


def _checked(mask: ArrayLike, name: str) -> jax.Array:
    mask = jnp.asarray(mask)
    if mask.dtype != bool and not jnp.issubdtype(mask.dtype, jnp.floating):
        raise ValueError(f"only bool and floating types of {name} are supported")
    return mask
