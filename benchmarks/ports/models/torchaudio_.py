"""torchaudio: its models at small sizes, one for each architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..case import Case, Maker, integers, normal

WAV2VEC2: dict[str, Any] = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 16,
    "encoder_projection_dropout": 0.0,
    "encoder_pos_conv_kernel": 8,
    "encoder_pos_conv_groups": 2,
    "encoder_num_layers": 2,
    "encoder_num_heads": 2,
    "encoder_attention_dropout": 0.0,
    "encoder_ff_interm_features": 32,
    "encoder_ff_interm_dropout": 0.0,
    "encoder_dropout": 0.0,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.0,
    "aux_num_out": 5,
}
WAVLM = {**{k: v for k, v in WAV2VEC2.items() if k != "aux_num_out"}, "encoder_num_buckets": 8}
RNNT: dict[str, Any] = {
    "input_dim": 8,
    "encoding_dim": 16,
    "num_symbols": 10,
    "segment_length": 4,
    "right_context_length": 1,
    "time_reduction_input_dim": 8,
    "time_reduction_stride": 2,
    "transformer_num_heads": 2,
    "transformer_ffn_dim": 16,
    "transformer_num_layers": 2,
    "transformer_dropout": 0.0,
    "transformer_activation": "gelu",
    "transformer_left_context_length": 4,
    "transformer_max_memory_size": 0,
    "transformer_weight_init_scale_strategy": "depthwise",
    "transformer_tanh_on_mem": True,
    "symbol_embedding_dim": 8,
    "num_lstm_layers": 1,
    "lstm_layer_norm": True,
    "lstm_layer_norm_epsilon": 1e-3,
    "lstm_dropout": 0.0,
}
TACOTRON: dict[str, Any] = {
    "n_mels": 8,
    "n_symbol": 20,
    "symbol_embedding_dim": 16,
    "encoder_embedding_dim": 16,
    "encoder_n_convolution": 1,
    "encoder_kernel_size": 5,
    "decoder_rnn_dim": 16,
    "decoder_max_step": 10,
    "decoder_dropout": 0.0,
    "decoder_early_stopping": False,
    "attention_rnn_dim": 16,
    "attention_hidden_dim": 8,
    "attention_location_n_filter": 4,
    "attention_location_kernel_size": 5,
    "attention_dropout": 0.0,
    "prenet_dim": 8,
    "postnet_n_convolution": 2,
    "postnet_kernel_size": 5,
    "postnet_embedding_dim": 8,
}


def lengths(*values: int) -> Maker:
    return lambda generator: torch.tensor(values)


MODELS: dict[str, tuple[str, tuple[Maker, ...], Any]] = {
    "conformer": (
        "Conformer",
        (normal(2, 9, 16), lengths(9, 6)),
        {"input_dim": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 2, "depthwise_conv_kernel_size": 5},
    ),
    "conv_tasnet": (
        "ConvTasNet",
        (normal(2, 1, 64),),
        {
            "num_sources": 2,
            "enc_kernel_size": 8,
            "enc_num_feats": 16,
            "msk_num_feats": 8,
            "msk_num_hidden_feats": 16,
            "msk_num_layers": 2,
            "msk_num_stacks": 2,
        },
    ),
    "deepspeech": ("DeepSpeech", (normal(2, 1, 9, 8),), {"n_feature": 8, "n_hidden": 16, "n_class": 5}),
    "emformer": (
        "Emformer",
        (normal(2, 9, 16), lengths(9, 6)),
        {
            "input_dim": 16,
            "num_heads": 2,
            "ffn_dim": 32,
            "num_layers": 2,
            "segment_length": 4,
            "right_context_length": 1,
        },
    ),
    "hdemucs": (
        "HDemucs",
        (normal(1, 2, 1024),),
        {"sources": ["drums", "bass"], "channels": 8, "nfft": 64, "depth": 2},
    ),
    "rnnt": (
        "emformer_rnnt_model",
        (normal(2, 9, 8), lengths(9, 9), integers(10, 2, 4), lengths(4, 3)),
        RNNT,
    ),
    "squim_objective": (
        "squim_objective_model",
        (normal(2, 320),),
        {
            "feat_dim": 8,
            "win_len": 16,
            "d_model": 8,
            "nhead": 2,
            "hidden_dim": 8,
            "num_blocks": 1,
            "rnn_type": "LSTM",
            "chunk_size": 7,
        },
    ),
    "tacotron2": (
        "Tacotron2",
        (integers(20, 2, 7), lengths(7, 5), normal(2, 8, 6), lengths(6, 4)),
        TACOTRON,
    ),
    "wav2letter": (
        "Wav2Letter",
        (normal(1, 4, 600),),
        {"num_classes": 5, "num_features": 4, "input_type": "mfcc"},
    ),
    "wav2vec2": ("wav2vec2_model", (normal(2, 200),), WAV2VEC2),
    "wav2vec2_layer_norm": (
        "wav2vec2_model",
        (normal(2, 200), lengths(200, 150)),
        {**WAV2VEC2, "extractor_mode": "layer_norm", "encoder_layer_norm_first": True},
    ),
    "wavernn": (
        "WaveRNN",
        (normal(2, 1, 24), normal(2, 1, 8, 10)),
        {
            "upsample_scales": [2, 2],
            "n_classes": 6,
            "hop_length": 4,
            "n_res_block": 2,
            "n_rnn": 8,
            "n_fc": 8,
            "kernel_size": 5,
            "n_freq": 8,
            "n_hidden": 8,
            "n_output": 8,
        },
    ),
    "wavlm": (
        "wavlm_model",
        (normal(2, 200),),
        {**WAVLM, "encoder_max_distance": 16, "aux_num_out": 5},
    ),
}


def case(name: str, model: str, inputs: tuple[Maker, ...], settings: dict[str, Any]) -> Case:
    def make() -> torch.nn.Module:
        from ..vision import torchvision

        torchvision()
        from torchaudio import models

        builder: Callable[..., torch.nn.Module] = getattr(models, model)
        return builder(**settings)

    return Case(name, make, inputs)


CASES = tuple(case(name, *row) for name, row in MODELS.items())
