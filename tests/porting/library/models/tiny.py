"""A decoder of one layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import nn

from ..activations import ACT2FN
from ..cache_utils import Cache
from ..configuration_utils import PretrainedConfig
from ..masking_utils import create_causal_mask, create_sliding_window_causal_mask
from ..modeling_layers import GradientCheckpointingLayer
from ..modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel, logger
from ..utils.generic import ModelOutput, check_model_inputs

if TYPE_CHECKING:
    from ..masking_utils import BlockMask


class TinyConfig(PretrainedConfig):
    def __init__(self, width=8, sliding_window=None, **kwargs):
        super().__init__(**kwargs)
        self.width, self.sliding_window, self.hidden_act = width, sliding_window, "gelu"


@dataclass
class TinyOutput(ModelOutput):
    last_hidden_state: torch.FloatTensor | None = None
    past_key_values: Cache | None = None


def eager_attention_forward(module: nn.Module, query, key, attention_mask: torch.Tensor | None):
    scores = torch.matmul(query, key.transpose(-1, -2)) * module.scaling
    if attention_mask is not None:
        scores = scores + attention_mask[:, 0]
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, key)


class TinyAttention(nn.Module):
    def __init__(self, config: TinyConfig):
        super().__init__()
        self.config = config
        self.scaling = config.width**-0.5
        self.query = nn.Linear(config.width, config.width)
        self.pruned_heads = set()

    def forward(self, hidden_states, attention_mask, past_key_values: Cache | None = None):
        query = self.query(hidden_states)
        key = hidden_states
        if past_key_values is not None:
            if not isinstance(past_key_values, Cache):
                past_key_values = Cache()
            query, key = past_key_values.update(query, key)
        attention_interface = eager_attention_forward
        if self.config._attn_implementation != "eager":
            attention_interface = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return attention_interface(self, query, key, attention_mask)


class TinySdpaAttention(TinyAttention):
    def forward(self, hidden_states, attention_mask, past_key_values=None):
        return hidden_states


ATTENTIONS = {"eager": TinyAttention, "sdpa": TinySdpaAttention}


class TinyLayer(GradientCheckpointingLayer):
    def __init__(self, config: TinyConfig):
        super().__init__()
        self.attention = ATTENTIONS[config._attn_implementation](config)
        self.act = ACT2FN[config.hidden_act]
        self.out = nn.Linear(config.width, config.width)

    def forward(self, hidden_states: torch.Tensor, attention_mask, past_key_values: Cache | None = None):
        attended = self.attention(hidden_states, attention_mask, past_key_values=past_key_values)
        return hidden_states + self.out(self.act(attended))


class TinyPreTrainedModel(PreTrainedModel):
    config: TinyConfig
    base_model_prefix = "tiny"
    _no_split_modules = ("TinyLayer",)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.3)


class TinyModel(TinyPreTrainedModel):
    def __init__(self, config: TinyConfig):
        super().__init__(config)
        self.embed = nn.Linear(config.width, config.width)
        self.layers = nn.ModuleList([TinyLayer(config) for _ in range(2)])

        # Initialize weights
        self.post_init()

    @check_model_inputs
    def forward(
        self,
        inputs_embeds: torch.FloatTensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
    ) -> TinyOutput:
        if use_cache and past_key_values is None:
            logger.warning("there is a cache")
            past_key_values = Cache()
        device = inputs_embeds.device
        cache_position = torch.arange(inputs_embeds.shape[1], device=device)
        mask_function = create_causal_mask
        if self.config.sliding_window is not None:
            mask_function = create_sliding_window_causal_mask
        mask = mask_function(
            config=self.config,
            input_embeds=inputs_embeds,
            attention_mask=attention_mask,
            cache_position=cache_position,
            past_key_values=past_key_values,
            position_ids=cache_position.unsqueeze(0),
        )
        hidden_states = self.embed(inputs_embeds.to(self.dtype))
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, past_key_values=past_key_values)
        return TinyOutput(last_hidden_state=hidden_states, past_key_values=past_key_values)


class TinyEncoder(TinyModel):
    """A mask from the base class, and an output that is taken apart by number."""

    def forward(self, inputs_embeds: torch.FloatTensor, attention_mask: torch.Tensor) -> torch.Tensor:
        head_mask = self.get_head_mask(None, len(self.layers))
        mask = self.get_extended_attention_mask(attention_mask, inputs_embeds.shape[:2])
        for layer, layer_head_mask in zip(self.layers, head_mask, strict=True):
            inputs_embeds = layer(inputs_embeds, mask if layer_head_mask is None else layer_head_mask)
        return TinyOutput(last_hidden_state=self.embed(inputs_embeds))[0]


class TinyCross(TinyPreTrainedModel):
    """A variable that only a branch of the runtime assigns; annotations in quotes."""

    def __init__(self, config: TinyConfig):
        super().__init__(config)
        self.embed = nn.Linear(config.width, config.width)
        self.post_init()

    def forward(
        self,
        inputs_embeds: "torch.Tensor",
        attention_mask: "torch.Tensor | BlockMask | None" = None,
        past_key_values: "Cache | None" = None,
        weights: Annotated[torch.Tensor | None, "rows columns"] = None,
        mode: Literal["sum", "mean"] = "sum",
    ):
        hidden_states = self.embed(inputs_embeds)
        if isinstance(past_key_values, Cache):
            is_updated = past_key_values.key is not None
        if past_key_values is not None and is_updated:
            hidden_states = past_key_values.key
        return hidden_states.sum(1) if mode == "sum" else hidden_states.mean(1)
