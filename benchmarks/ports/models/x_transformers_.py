"""x_transformers: a decoder with one option that is off by default; 24 drawn from those that run alone."""

from __future__ import annotations

import random
from typing import Any

import torch

from ..case import Case, integers

LAYERS = (
    *("use_scalenorm", "use_rmsnorm", "use_dynamic_tanh", "use_derf", "use_simple_rmsnorm", "only_attn"),
    *("alibi_pos_bias", "rel_pos_bias", "dynamic_pos_bias", "rotary_pos_emb", "rotary_xpos", "polar_pos_emb"),
    *("weight_tie_layers", "residual_attn", "macaron", "pre_and_post_norm", "attn_aggregated_residuals"),
    *("gate_residual", "orthog_residual", "mv_split_residual", "gated_multi_residual", "scale_residual"),
    *("depth_scale_residual", "sandwich_norm", "softclamp_output", "zero_init_branch_output"),
    *("use_layerscale", "unet_skips", "integrate_layers", "qkv_receive_diff_residuals", "reinject_input"),
    "add_value_residual",
)
ATTENTION = (
    *("pre_talking_heads", "post_talking_heads", "pre_scale_post_talking_heads", "head_scale", "on_attn"),
    *("gate_value_heads", "swiglu_values", "gate_values", "output_gate", "zero_init_output", "hard"),
    *("qk_norm", "qk_rmsnorm", "k_rmsnorm", "value_rmsnorm", "l2_distance", "sigmoid", "selective"),
    *("cog_signed", "one_kv_head", "add_zero_kv", "head_learned_sink", "data_dependent_alibi"),
    *("data_dependent_alibi_per_row", "use_cope", "softclamp_logits", "orthog_projected_values", "laser"),
    *("use_rel_proj_pos_bias", "inverted_attention"),
)
WRAPPER = (
    *("post_emb_norm", "tie_embedding", "return_only_embed", "scaled_sinu_pos_emb", "l2norm_embed"),
    *("recycling", "looped", "average_pool_embed", "use_cls_token", "attn_pool", "mixture_of_softmax"),
    *("sigsoftmax_logits", "ff_deep_embed"),
)
NUMBER, SEED = 24, 32


def case(option: str) -> Case:
    """Return a decoder of two layers, with an option of its layers, its attention or its wrapper."""

    def make() -> torch.nn.Module:
        import x_transformers

        layers: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "attn_dim_head": 8, "verbose": False}
        wrapper: dict[str, Any] = {"num_tokens": 32, "max_seq_len": 16}
        if option in WRAPPER:
            wrapper[option] = True
        else:
            layers[option if option in LAYERS else f"attn_{option}"] = True
        return x_transformers.TransformerWrapper(attn_layers=x_transformers.Decoder(**layers), **wrapper)

    return Case(option, make, (integers(32, 2, 8),))


OPTIONS = (*LAYERS, *ATTENTION, *WRAPPER)
REFUSED = (
    *("attn_aggregated_residuals", "gated_multi_residual", "qkv_receive_diff_residuals", "recycling"),
    "looped",
)
"""Options that torch refuses alone."""
CASES = tuple(
    case(option) for option in random.Random(SEED).sample([x for x in OPTIONS if x not in REFUSED], NUMBER)
)
