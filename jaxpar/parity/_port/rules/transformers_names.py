"""transformers: the parts of its runtime that a ported file replaces, and those that it leaves out."""

LIBRARY = "transformers"
"""Its `models` are ported; from the other subpackages, the runtime, only functions that ran."""

CONFIG = "PretrainedConfig"  # The base of all configuration classes

# By names, because transformers is optional: importing it to build this table would require it.
STAND_INS = {
    "PreTrainedModel": "modeling_utils",
    "ModelOutput": "utils.generic",
    "ACT2FN": "activations",
    "_prepare_4d_attention_mask": "modeling_attn_mask_utils",
    "_create_4d_causal_attention_mask": "modeling_attn_mask_utils",
    "create_causal_mask": "masking_utils",
    "create_sliding_window_causal_mask": "masking_utils",
}
"""The definitions of `transformers_stand_ins`, with the module of transformers that each replaces."""

LIBRARY_SILENT = (
    "transformers.modeling_utils.PreTrainedModel.post_init",
    "transformers.modeling_utils.PreTrainedModel.init_weights",
    "transformers.modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask",
)
"""Methods whose call computes nothing: they set initial values, tie weights or warn."""

LIBRARY_NAMES = {"transformers.modeling_layers.GradientCheckpointingLayer": "nnx.Module"}
"""Names that are replaced in a ported file."""

# The first three test for a mode that a ported file never runs in; torch_int differs from int only while
# torch traces.
FUNCTIONS = """
    transformers.utils.import_utils.is_torchdynamo_compiling() -> False
    transformers.utils.import_utils.is_torch_fx_proxy(x) -> False
    transformers.integrations.fsdp.is_fsdp_managed_module(module) -> False
    transformers.utils.generic.torch_int(x) -> int({x})
"""
