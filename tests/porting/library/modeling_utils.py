"""The base of all models, and attention in forms that a ported file does not have."""

import logging

import torch
from torch import nn

logger = logging.getLogger("porting.library.modeling_utils")


class AttentionInterface(dict):
    """Attentions by name."""


ALL_ATTENTION_FUNCTIONS = AttentionInterface(sdpa=nn.functional.scaled_dot_product_attention)


class PreTrainedModel(nn.Module):
    _no_split_modules = ()
    base_model_prefix = ""

    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        self.config = config

    def post_init(self):
        self.apply(self._init_weights)

    def _init_weights(self, module):
        raise NotImplementedError

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def get_head_mask(self, head_mask, num_hidden_layers, is_attention_chunked=False):
        return [None] * num_hidden_layers

    def invert_attention_mask(self, encoder_attention_mask):
        inverted = 1.0 - encoder_attention_mask[:, None, None, :].to(self.dtype)
        return inverted * torch.finfo(self.dtype).min

    def get_extended_attention_mask(self, attention_mask, input_shape, device=None, dtype=None):
        return self.invert_attention_mask(attention_mask)
