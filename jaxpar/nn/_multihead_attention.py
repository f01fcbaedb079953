"""MultiheadAttention with torch's masks and options.

Flax's layer has the other polarity (True = keep), no key padding mask, no bias_kv, no zero_attn, does
not return its weights, and gives a query without keys the mean of all values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from . import functional
from ._cells import cast
from ._variable import uniform
from .functional._dropout import check_probability


class MultiheadAttention(nnx.Module):
    """Attention by heads. E `embed_dim`, H `num_heads`.

    Args:
      embed_dim, num_heads: E and H, which divides it.
      dropout: the rate at which weights are dropped, in training.
      bias: whether the projections have biases.
      add_bias_kv: whether a learnt key and value stand behind the others.
      add_zero_attn: whether a key and a value of zeros stand behind them.
      kdim, vdim: widths of keys and values; E if left out.
      batch_first: whether inputs and output are [B, L, E] instead of [L, B, E].
      dtype: of the computation; the arrays' common type if left out.
      param_dtype: of the parameters.
      rngs: `params` for the weights, `dropout` if there is dropout.

    Called with `(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
    average_attn_weights=True, is_causal=False)` it returns the output and the weights or None, as
    `functional.multi_head_attention_forward`, which it calls. In masks True means blocked. Self-attention
    called with one array three times takes one product for all three projections.

    Parameters: in_proj_weight [E, 3E], torch's transposed, or with kdim or vdim q_proj_weight [E, E],
    k_proj_weight [kdim, E] and v_proj_weight [vdim, E]; in_proj_bias [3E]; out_proj.kernel [E, E] and
    out_proj.bias [E]; bias_k and bias_v [1, 1, E]. They begin as torch's: Xavier uniform, the output
    U(-1/sqrt(E), 1/sqrt(E)), biases 0, bias_k and bias_v normal.

    Raises:
      ValueError: sizes that torch refuses, or a dropout outside of [0, 1].

    torch counterpart: `torch.nn.MultiheadAttention`. Source: torch/nn/modules/activation.py.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        _check(embed_dim, num_heads, dropout)
        E = embed_dim
        self.embed_dim = E
        self.num_heads = num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.kdim = E if kdim is None else kdim
        self.vdim = E if vdim is None else vdim
        self.batch_first = batch_first
        self.dtype = dtype
        self.deterministic = False
        self.rngs = rngs.dropout.fork() if dropout else nnx.data(None)

        def weight(shape: tuple[int, ...]) -> nnx.Param:
            return nnx.Param(nnx.initializers.xavier_uniform()(rngs.params(), shape, param_dtype))

        def row() -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), (1, 1, E), param_dtype) * E**-0.5)

        separate = self.kdim != E or self.vdim != E
        self.in_proj_weight = nnx.data(None) if separate else weight((E, 3 * E))
        self.q_proj_weight = weight((E, E)) if separate else nnx.data(None)
        self.k_proj_weight = weight((self.kdim, E)) if separate else nnx.data(None)
        self.v_proj_weight = weight((self.vdim, E)) if separate else nnx.data(None)
        self.in_proj_bias = nnx.Param(jnp.zeros(3 * E, param_dtype)) if bias else nnx.data(None)
        self.out_proj = linear(E, E, bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        if bias:
            self.out_proj.bias.set_value(jnp.zeros(E, param_dtype))
        self.bias_k = row() if add_bias_kv else nnx.data(None)
        self.bias_v = row() if add_bias_kv else nnx.data(None)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        drops = self.dropout > 0 and not self.deterministic
        params = cast(self._params(), self.dtype)
        if self.dtype is not None:
            cast_query = cast(query, self.dtype)
            cast_key = cast_query if key is query else cast(key, self.dtype)
            value = cast_key if value is key else cast(value, self.dtype)
            query, key = cast_query, cast_key
        return functional.multi_head_attention_forward(
            query,
            key,
            value,
            self.num_heads,
            params,
            add_zero_attn=self.add_zero_attn,
            dropout_p=self.dropout,
            training=not self.deterministic,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            batch_first=self.batch_first,
            dropout_key=self.rngs() if drops else None,
        )

    def _params(self) -> dict[str, jax.Array]:
        kept = {
            "in_proj_weight": self.in_proj_weight,
            "q_proj_weight": self.q_proj_weight,
            "k_proj_weight": self.k_proj_weight,
            "v_proj_weight": self.v_proj_weight,
            "in_proj_bias": self.in_proj_bias,
            "out_proj_weight": self.out_proj.kernel,
            "out_proj_bias": self.out_proj.bias,
            "bias_k": self.bias_k,
            "bias_v": self.bias_v,
        }
        return {name: variable[...] for name, variable in kept.items() if variable is not None}


def linear(
    inputs: int, outputs: int, bias: bool, *, dtype: Any, param_dtype: Any, rngs: nnx.Rngs
) -> nnx.Linear:
    """Flax's Linear, which computes what torch's does, with torch's initial values."""
    made = nnx.Linear(inputs, outputs, use_bias=bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    made.kernel.set_value(uniform(rngs, (inputs, outputs), inputs, param_dtype)[...])
    if bias:
        made.bias.set_value(uniform(rngs, (outputs,), inputs, param_dtype)[...])
    return made


def _check(embed_dim: int, num_heads: int, dropout: float) -> None:
    if embed_dim <= 0 or num_heads <= 0:
        raise ValueError(
            "embed_dim and num_heads must be greater than 0, got "
            f"embed_dim={embed_dim} and num_heads={num_heads} instead"
        )
    if embed_dim % num_heads:
        raise ValueError(f"embed_dim must be divisible by num_heads: {embed_dim} by {num_heads}")
    check_probability(dropout)
