"""multi_head_attention_forward with torch's arguments and weights, [outputs, inputs]."""

from __future__ import annotations

import jax
from flax import nnx
from jax.typing import ArrayLike

from ... import functional as last


def multi_head_attention_forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: jax.Array | None,
    in_proj_bias: jax.Array | None,
    bias_k: jax.Array | None,
    bias_v: jax.Array | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: jax.Array,
    out_proj_bias: jax.Array | None,
    training: bool = True,
    key_padding_mask: ArrayLike | None = None,
    need_weights: bool = True,
    attn_mask: ArrayLike | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: jax.Array | None = None,
    k_proj_weight: jax.Array | None = None,
    v_proj_weight: jax.Array | None = None,
    static_k: None = None,
    static_v: None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    dropout_key: jax.Array | nnx.RngStream | nnx.Rngs | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """`jaxpar.nn.functional.multi_head_attention_forward` with torch's weights, [outputs, inputs].

    Args:
      query: [L, B, E]. key: [S, B, Ek]. value: [S, B, Ev].
      embed_dim_to_check: E.
      in_proj_weight: [3 E, E]; or, with `use_separate_proj_weight`, `q_proj_weight` [E, E] and the others.
      static_k, static_v: not supported.
      dropout_key: draws the weights that are dropped, in `training` with a `dropout_p` that is not 0.

    Returns: The output [L, B, E], and the weights [B, L, S] or None. Raises: ValueError: the queries are not
    `embed_dim_to_check` wide. Others: as the function above.

    torch counterpart: `torch.nn.functional.multi_head_attention_forward`.
    """
    if query.shape[-1] != embed_dim_to_check:
        raise ValueError(
            f"was expecting embedding dimension of {embed_dim_to_check}, but got {query.shape[-1]}"
        )
    separate = {"q": q_proj_weight, "k": k_proj_weight, "v": v_proj_weight}
    weights = (
        {f"{letter}_proj_weight": weight for letter, weight in separate.items()}
        if use_separate_proj_weight
        else {"in_proj_weight": in_proj_weight}
    )
    weights["out_proj_weight"] = out_proj_weight
    for name, weight in weights.items():
        if weight is None:
            raise ValueError(f"multi_head_attention_forward: {name} is None")
    rows = {
        "in_proj_bias": in_proj_bias,
        "out_proj_bias": out_proj_bias,
        "bias_k": bias_k,
        "bias_v": bias_v,
    }
    params = {name: weight.T for name, weight in weights.items() if weight is not None}
    return last.multi_head_attention_forward(
        query,
        key,
        value,
        num_heads,
        params | {name: row for name, row in rows.items() if row is not None},
        add_zero_attn=add_zero_attn,
        dropout_p=dropout_p,
        training=training,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
        dropout_key=dropout_key,
    )
