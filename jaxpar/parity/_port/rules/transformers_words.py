"""transformers: what of its runtime has another form in a ported file, and what is left out.

Its models are written like those of a user; what they call outside of them is the runtime.
"""

LIBRARY = "transformers"
"""Its `models` are ported; of the others, which are the runtime, only functions that ran."""

CONFIG = "PretrainedConfig"
"""The base of all classes of settings."""

STAND_INS = {
    "PreTrainedModel": "modeling_utils",
    "ModelOutput": "utils.generic",
    "ACT2FN": "activations",
    "_prepare_4d_attention_mask": "modeling_attn_mask_utils",
    "_create_4d_causal_attention_mask": "modeling_attn_mask_utils",
    "create_causal_mask": "masking_utils",
    "create_sliding_window_causal_mask": "masking_utils",
}
"""What is copied from `transformers_stand_ins`, and the module of transformers that has it."""

LIBRARY_SILENT = (
    "transformers.modeling_utils.PreTrainedModel.post_init",
    "transformers.modeling_utils.PreTrainedModel.init_weights",
    "transformers.modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask",
)
"""Methods whose call computes nothing: they give initial values, tie weights or warn."""

LIBRARY_NAMES = {"transformers.modeling_layers.GradientCheckpointingLayer": "nnx.Module"}
"""Names with another one in a ported file."""

FUNCTIONS = """
    transformers.utils.import_utils.is_torchdynamo_compiling() -> False
    transformers.utils.import_utils.is_torch_fx_proxy(x) -> False
    transformers.integrations.fsdp.is_fsdp_managed_module(module) -> False
    transformers.utils.generic.torch_int(x) -> int({x})
"""
