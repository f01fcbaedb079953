"""Replacements for the runtime of transformers: definitions that are copied into a ported file by name.

Its models call them, for "eager" attention without a cache. The proof compares them with torch's like every
other line. Their docstrings and comments are part of users' files.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


class PreTrainedModel(nnx.Module):
    """A module with a config."""

    deterministic = False

    def __init__(self, config, *, rngs):
        self.config = config

    @property
    def dtype(self):
        return jax.tree.leaves(nnx.state(self, nnx.Param))[0].dtype

    def get_head_mask(self, head_mask, num_hidden_layers, is_attention_chunked=False):
        if head_mask is not None:
            raise NotImplementedError("not ported: head_mask")
        return [None] * num_hidden_layers

    def get_extended_attention_mask(self, attention_mask, input_shape, device=None, dtype=None):
        """0 where `attention_mask` is 1, and the type's smallest number where it is 0."""
        dtype = self.dtype if dtype is None else dtype
        if attention_mask.ndim == 3:
            extended_attention_mask = attention_mask[:, None, :, :]
        elif self.config.is_decoder:
            extended_attention_mask = attention_mask[:, None, None, :] * jnp.tri(input_shape[1])
        else:
            extended_attention_mask = attention_mask[:, None, None, :]
        return (1.0 - extended_attention_mask.astype(dtype)) * jnp.finfo(dtype).min

    def invert_attention_mask(self, encoder_attention_mask):
        """0 where the mask is 1, and the type's smallest number where it is 0; for all heads."""
        axes = (1, 2) if encoder_attention_mask.ndim == 2 else 1
        encoder_extended_attention_mask = jnp.expand_dims(encoder_attention_mask, axes).astype(self.dtype)
        return (1.0 - encoder_extended_attention_mask) * jnp.finfo(self.dtype).min


# The names are configuration files' values. transformers' "gelu" is exact, and nnx.gelu by default the tanh
# approximation, which is "gelu_new".
ACT2FN = {
    "gelu": partial(nnx.gelu, approximate=False),
    "gelu_new": nnx.gelu,
    "gelu_pytorch_tanh": nnx.gelu,
    "linear": nnx.identity,
    "quick_gelu": lambda x: x * nnx.sigmoid(1.702 * x),
    "relu": nnx.relu,
    "sigmoid": nnx.sigmoid,
    "silu": nnx.silu,
    "swish": nnx.silu,
    "tanh": nnx.tanh,
}


# The smallest finite number rather than -inf, as in transformers: softmax gives NaN for a row of -inf only.
def eager_mask(mask, attention_mask, position_ids, dtype):
    """0 where `mask` lets a query see a key that is not padding, and the type's smallest number elsewhere."""
    if attention_mask is not None:
        mask = mask & attention_mask[:, None, None, :].astype(bool)
    elif position_ids is not None:  # where positions begin anew, so does a sequence
        position_diff = jnp.diff(position_ids, prepend=position_ids[:, :1] - 1)
        packed_sequence_mask = (position_diff != 1).cumsum(-1)
        mask = mask & (packed_sequence_mask[:, None, :, None] == packed_sequence_mask[:, None, None, :])
    return jnp.where(mask, 0.0, jnp.finfo(dtype).min).astype(dtype)


def _prepare_4d_attention_mask(mask, dtype, tgt_len=None):
    """0 where `mask` is 1, and the type's smallest number elsewhere: [B, 1, T, T] of [B, T]."""
    return eager_mask(jnp.ones((1, 1, tgt_len or mask.shape[1], 1), bool), mask, None, dtype)


def _create_4d_causal_attention_mask(
    input_shape, dtype, device=None, past_key_values_length=0, sliding_window=None
):
    """The mask of attention to earlier tokens, at most `sliding_window` of them: [B, 1, T, T]."""
    q_idx, kv_idx = jnp.arange(input_shape[-1])[:, None], jnp.arange(input_shape[-1])
    mask = (kv_idx <= q_idx) & (kv_idx > q_idx - (sliding_window or input_shape[-1]))
    return eager_mask(jnp.broadcast_to(mask, (input_shape[0], 1, *mask.shape)), None, None, dtype)


def create_causal_mask(
    config, input_embeds, attention_mask, cache_position, past_key_values=None, position_ids=None
):
    """The mask of attention to earlier tokens: [B, 1, T, T]."""
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    q_idx, kv_idx = cache_position[:, None], jnp.arange(input_embeds.shape[1])
    return eager_mask((kv_idx <= q_idx)[None, None], attention_mask, position_ids, input_embeds.dtype)


def create_sliding_window_causal_mask(
    config, input_embeds, attention_mask, cache_position, past_key_values=None, position_ids=None
):
    """The mask of attention to the last `config.sliding_window` tokens: [B, 1, T, T]."""
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    q_idx, kv_idx = cache_position[:, None], jnp.arange(input_embeds.shape[1])
    mask = (kv_idx <= q_idx) & (kv_idx > q_idx - config.sliding_window)
    return eager_mask(mask[None, None], attention_mask, position_ids, input_embeds.dtype)
