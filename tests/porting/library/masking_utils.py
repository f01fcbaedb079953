"""Masks of attention: 0 where a word is seen, and the type's smallest number elsewhere."""

import torch


def _mask(config, input_embeds, attention_mask, position_ids, window):
    length, dtype = input_embeds.shape[1], input_embeds.dtype
    places = torch.arange(length)
    distance = places[:, None] - places
    seen = ((distance >= 0) & (distance < window))[None, None]
    if attention_mask is not None:
        seen = seen & attention_mask[:, None, None, :].bool()
    else:
        step = torch.diff(position_ids, prepend=position_ids[:, :1] - 1)
        sequence = (step != 1).cumsum(-1)
        seen = seen & (sequence[:, None, :, None] == sequence[:, None, None, :])
    return torch.where(seen, torch.tensor(0.0, dtype=dtype), torch.finfo(dtype).min)


def create_causal_mask(
    config, input_embeds, attention_mask, cache_position, past_key_values, position_ids=None
):
    return _mask(config, input_embeds, attention_mask, position_ids, input_embeds.shape[1])


def create_sliding_window_causal_mask(
    config, input_embeds, attention_mask, cache_position, past_key_values, position_ids=None
):
    return _mask(config, input_embeds, attention_mask, position_ids, config.sliding_window)
