"""MultiheadAttention with torch's masks and options, most of which Flax's layer lacks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from .._arguments import Size
from . import functional
from ._array_types import Floating
from ._checks import check_probability
from ._layer import TypedLayer, cast, constant, optional, uniform

_OWN_PARAMETERS = (
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    *("in_proj_bias", "bias_k", "bias_v"),
)


@dataclasses.dataclass(eq=False, repr=False)
class MultiheadAttention(TypedLayer):
    """Attention with several heads. E `embed_dim`, H `num_heads`.

    Args:
      embed_dim, num_heads: E and H, which divides it.
      dropout: the rate at which attention weights are dropped, in training.
      bias: whether the projections have biases.
      add_bias_kv: append a learned key and value to the others.
      add_zero_attn: append a key and a value of zeros.
      kdim, vdim: widths of keys and values; E if left out.
      batch_first: whether inputs and output are [B, L, E] instead of [L, B, E].
      dtype, param_dtype: of the computation (the arrays' common type if left out) and of the parameters.
      rngs: `params` for the weights, `dropout` if there is dropout.

    Called with `(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
    average_attn_weights=True, is_causal=False)` it returns the output and the weights or None, as
    `functional.multi_head_attention_forward`, which it calls. In masks True means blocked. Self-attention,
    called with the same array three times, takes one product for all three projections.

    Parameters: in_proj_weight [E, 3E], torch's transposed, or with kdim or vdim q_proj_weight [E, E],
    k_proj_weight [kdim, E] and v_proj_weight [vdim, E]; in_proj_bias [3E]; out_proj.kernel [E, E] and
    out_proj.bias [E]; bias_k and bias_v [1, 1, E]. They start as in torch: Xavier uniform, the output from
    U(-1/sqrt(E), 1/sqrt(E)), biases 0, bias_k and bias_v normal.

    Raises: ValueError: sizes that torch refuses, or a dropout outside of [0, 1].

    torch counterpart: `torch.nn.MultiheadAttention`. Source: torch/nn/modules/activation.py.
    """

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = True
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    kdim: Size | None = None
    vdim: Size | None = None
    batch_first: bool = False

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        E = self.embed_dim
        _check(E, self.num_heads, self.dropout)
        self.kdim = kdim = E if self.kdim is None else self.kdim
        self.vdim = vdim = E if self.vdim is None else self.vdim
        self.deterministic = False
        # Forked only if it is used, as a model without dropout may come without such a stream.
        self.rngs = rngs.dropout.fork() if self.dropout else nnx.data(None)

        def weight(*shape: int) -> nnx.Param:
            draw = nnx.initializers.zeros if 0 in shape else nnx.initializers.xavier_uniform()
            return nnx.Param(draw(rngs.params(), shape, self.param_dtype))

        # torch's xavier_normal_ takes E for both fans of [1, 1, E].
        def row() -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), (1, 1, E), self.param_dtype) * E**-0.5)

        # As in torch the packed matrix has a fan-out of 3 E, so its weights start smaller than separate ones.
        separate = kdim != E or vdim != E
        self.in_proj_weight = optional(not separate, lambda: weight(E, 3 * E))
        self.q_proj_weight = optional(separate, lambda: weight(E, E))
        self.k_proj_weight = optional(separate, lambda: weight(kdim, E))
        self.v_proj_weight = optional(separate, lambda: weight(vdim, E))
        self.in_proj_bias = constant(self.bias, 0, (3 * E,), self.param_dtype)
        self.out_proj = linear(E, E, self.bias, dtype=self.dtype, param_dtype=self.param_dtype, rngs=rngs)
        # torch draws this bias, like any Linear's, and then overwrites it.
        if self.bias:
            self.out_proj.bias.set_value(jnp.zeros(E, self.param_dtype))
        self.bias_k, self.bias_v = optional(self.add_bias_kv, row), optional(self.add_bias_kv, row)

    def __call__(
        self,
        query: Floating,
        key: Floating,
        value: Floating,
        key_padding_mask: ArrayLike | None = None,
        need_weights: bool = True,
        attn_mask: ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        drops = self.dropout > 0 and not self.deterministic
        params = cast(self._params(), self.dtype)
        if self.dtype is not None:
            # One cast for an array given twice: that it is the same object is what saves the products.
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
            dropout_key=self.rngs if drops else None,
        )

    def _params(self) -> dict[str, jax.Array]:
        variables = {name: getattr(self, name) for name in _OWN_PARAMETERS}
        variables |= {"out_proj_weight": self.out_proj.kernel, "out_proj_bias": self.out_proj.bias}
        return {name: variable[...] for name, variable in variables.items() if variable is not None}


def linear(
    inputs: int, outputs: int, bias: bool, *, dtype: DTypeLike | None, param_dtype: DTypeLike, rngs: nnx.Rngs
) -> nnx.Linear:
    """Flax's Linear, which computes the same as torch's, with torch's initial values."""
    # Flax's own initial values, which cannot be without elements, are replaced.
    types: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
    linear = nnx.Linear(
        inputs, outputs, use_bias=bias, kernel_init=nnx.initializers.zeros, **types, rngs=rngs
    )
    linear.kernel.set_value(uniform(rngs, (inputs, outputs), inputs, param_dtype)[...])
    if bias:
        linear.bias.set_value(uniform(rngs, (outputs,), inputs, param_dtype)[...])
    return linear


def _check(embed_dim: int, num_heads: int, dropout: float) -> None:
    if embed_dim <= 0 or num_heads <= 0:
        raise ValueError(
            "embed_dim and num_heads must be greater than 0, got "
            f"embed_dim={embed_dim} and num_heads={num_heads} instead"
        )
    if embed_dim % num_heads:
        raise ValueError(f"embed_dim must be divisible by num_heads: {embed_dim} by {num_heads}")
    check_probability(dropout)
