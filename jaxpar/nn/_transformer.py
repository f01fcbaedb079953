"""Transformer layers with torch's structure, names and defaults.

On its fast path torch's TransformerEncoder may pack padded sequences, whose outputs at padding are then 0;
here, as in torch's training, they are computed like all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from .._arguments import Count, NonNegative, Size
from . import functional
from ._array_types import Floating
from ._dropout import Dropout
from ._layer import Layer, deepcopy, drawn
from ._layer_norm import LayerNorm
from ._multihead_attention import MultiheadAttention, linear

Activation = Callable[[jax.Array], jax.Array]
Mask = ArrayLike | None
ACTIVATIONS: dict[str, Activation] = {"relu": jax.nn.relu, "gelu": functional.gelu}


class _Layer(Layer):
    has_memory: bool

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: Size = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: NonNegative = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise RuntimeError(f"activation should be relu/gelu, not {activation}")
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}

        def attention() -> MultiheadAttention:
            return MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **options)

        self.norm_first = norm_first
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        # In torch's order, in which torch_init draws the weights.
        self.self_attn = attention()
        if self.has_memory:
            self.multihead_attn = attention()
        self.linear1 = linear(d_model, dim_feedforward, bias, **options)
        self.dropout = Dropout(dropout, rngs=rngs)
        self.linear2 = linear(dim_feedforward, d_model, bias, **options)
        self.norm1, self.norm2 = norm(), norm()
        self.dropout1, self.dropout2 = Dropout(dropout, rngs=rngs), Dropout(dropout, rngs=rngs)
        if self.has_memory:
            self.norm3 = norm()
            self.dropout3 = Dropout(dropout, rngs=rngs)

    def _residual(self, norm: LayerNorm, block: Activation, x: jax.Array) -> jax.Array:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _self_attention(self, mask: Mask, key_padding_mask: Mask, is_causal: bool) -> Activation:
        # One array three times, for which one product makes all projections.
        return lambda x: self.dropout1(_attend(self.self_attn, x, x, mask, key_padding_mask, is_causal))

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def _attend(
    attention: MultiheadAttention,
    x: jax.Array,
    memory: jax.Array,
    mask: Mask,
    key_padding_mask: Mask,
    is_causal: bool,
) -> jax.Array:
    # need_weights=False: the path that does not return the matrix of weights, which costs memory.
    output, _ = attention(
        x, memory, memory, key_padding_mask, need_weights=False, attn_mask=mask, is_causal=is_causal
    )
    return output


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, each with a residual sum and a LayerNorm.

    Args:
      d_model, nhead: the width and the number of heads, which divides it.
      dim_feedforward: the width between the two linear layers.
      dropout: the rate for attention weights, for both blocks' outputs and between the linear layers.
      activation: "relu", "gelu" (the exact one), or a function.
      layer_norm_eps: of the norms.
      batch_first: whether sequences are [B, L, E] instead of [L, B, E].
      norm_first: whether norms come before the blocks instead of after the sums.
      bias: whether linear layers, projections and norms have one.
      dtype, param_dtype: of the computation (the arrays' common type if left out) and of the parameters.
      rngs: `params` for the weights, `dropout` for dropout.

    Called with `(src, src_mask=None, src_key_padding_mask=None, is_causal=False)`: masks and the hint as for
    `MultiheadAttention`, True meaning blocked. Its parts: self_attn, linear1, linear2, norm1, norm2.

    Raises: ValueError, RuntimeError: options that torch refuses.

    torch counterpart: `torch.nn.TransformerEncoderLayer`. Source: torch/nn/modules/transformer.py.
    """

    has_memory = False

    def __call__(
        self,
        src: Floating,
        src_mask: Mask = None,
        src_key_padding_mask: Mask = None,
        is_causal: bool = False,
    ) -> jax.Array:
        attention = self._self_attention(src_mask, src_key_padding_mask, is_causal)
        x = self._residual(self.norm1, attention, src)
        return self._residual(self.norm2, lambda x: self.dropout2(self._feed_forward(x)), x)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory, and two linear layers.

    The arguments are `TransformerEncoderLayer`'s. Called with `(tgt, memory, tgt_mask=None, memory_mask=None,
    tgt_key_padding_mask=None, memory_key_padding_mask=None, tgt_is_causal=False, memory_is_causal=False)`.
    Its parts: self_attn, multihead_attn, linear1, linear2, norm1 to norm3.

    torch counterpart: `torch.nn.TransformerDecoderLayer`. Source: torch/nn/modules/transformer.py.
    """

    has_memory = True

    def __call__(
        self,
        tgt: Floating,
        memory: Floating,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> jax.Array:
        def memory_attention(x: jax.Array) -> jax.Array:
            masks = (memory_mask, memory_key_padding_mask, memory_is_causal)
            return self.dropout2(_attend(self.multihead_attn, x, memory, *masks))

        self_attention = self._self_attention(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        x = self._residual(self.norm1, self_attention, tgt)
        x = self._residual(self.norm2, memory_attention, x)
        return self._residual(self.norm3, lambda x: self.dropout3(self._feed_forward(x)), x)


class TransformerEncoder(Layer):
    """A stack of copies of one layer, and a norm after them.

    Args:
      encoder_layer: copied, so that all layers start from its values; each copy draws its own random numbers.
      num_layers: how many.
      norm: after the last layer, or None.

    Called with `(src, mask=None, src_key_padding_mask=None, is_causal=False)`, which all layers get.

    torch counterpart: `torch.nn.TransformerEncoder`, without its fast path's options. torch compares `mask`
    with the causal mask; here `is_causal` states it, with the same result.
    """

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: Count, norm: nnx.Module | None = None
    ):
        self.layers = _copies(encoder_layer, num_layers)
        self.norm = nnx.data(norm)

    def __call__(
        self, src: Floating, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> jax.Array:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Layer):
    """A stack of copies of one layer, and a norm after them: `TransformerEncoder` with a memory.

    Called with the arguments of `TransformerDecoderLayer`, which all layers get.

    torch counterpart: `torch.nn.TransformerDecoder`. Source: torch/nn/modules/transformer.py.
    """

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: Count, norm: nnx.Module | None = None
    ):
        self.layers = _copies(decoder_layer, num_layers)
        self.norm = nnx.data(norm)

    def __call__(
        self, tgt: Floating, memory: Floating, *masks: Mask | bool, **named: Mask | bool
    ) -> jax.Array:
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, *masks, **named)
        return x if self.norm is None else self.norm(x)


class Transformer(Layer):
    """An encoder and a decoder, each with a norm after its last layer.

    Args:
      d_model, nhead, dim_feedforward, dropout, activation: of the layers, as in `TransformerEncoderLayer`.
      layer_norm_eps, batch_first, norm_first, bias, dtype, param_dtype, rngs: likewise.
      num_encoder_layers, num_decoder_layers: how many layers each has.
      custom_encoder, custom_decoder: modules in place of them.

    Called with `(src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None,
    tgt_key_padding_mask=None, memory_key_padding_mask=None, src_is_causal=False, tgt_is_causal=False,
    memory_is_causal=False)`: [S, B, E] and [T, B, E], or with B first, give [T, B, E].

    Parameters with more than one axis start from U(-b, b), b = sqrt(6 / (inputs + outputs)).

    Raises: ValueError, RuntimeError: options that torch refuses; sequences of another width than d_model.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> net = nn.Transformer(4, 2, 1, 1, 8, rngs=nnx.Rngs(0))
    >>> net(jnp.ones((5, 3, 4)), jnp.ones((2, 3, 4))).shape
    (2, 3, 4)

    torch counterpart: `torch.nn.Transformer`. Source: torch/nn/modules/transformer.py.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: Count = 6,
        num_decoder_layers: Count = 6,
        dim_feedforward: Size = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        custom_encoder: nnx.Module | None = None,
        custom_decoder: nnx.Module | None = None,
        layer_norm_eps: NonNegative = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)

        def stack(kind: Any, layer: type[_Layer], depth: int) -> nnx.Module:
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **options)
            return kind(layer(*sizes, batch_first, norm_first, bias, **options), depth, norm)

        encoder = TransformerEncoder, TransformerEncoderLayer, num_encoder_layers
        decoder = TransformerDecoder, TransformerDecoderLayer, num_decoder_layers
        self.encoder = stack(*encoder) if custom_encoder is None else custom_encoder
        self.decoder = stack(*decoder) if custom_decoder is None else custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for variable in nnx.to_flat_state(nnx.state(self, nnx.Param)).leaves:
            if variable.ndim > 1:
                inputs, outputs = (math.prod(variable.shape[:-2]) * n for n in variable.shape[-2:])
                bound = math.sqrt(6 / (inputs + outputs))
                variable.set_value(drawn(rngs.params(), variable.shape, variable.dtype, bound))

    def __call__(
        self,
        src: Floating,
        tgt: Floating,
        src_mask: Mask = None,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        src_key_padding_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> jax.Array:
        rows = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[rows] != tgt.shape[rows]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)


def _copies(layer: nnx.Module, n: int) -> nnx.List:
    return nnx.List([deepcopy(layer) for _ in range(n)])
