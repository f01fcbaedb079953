"""An encoder and a decoder: of text, and of sound."""

from __future__ import annotations

from ..inputs import WORDS, speech, two_texts, waves
from ..pair import Pair

BART = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 20,
    "use_cache": False,
}
MARIAN = BART | {"decoder_vocab_size": WORDS, "pad_token_id": 0}
T5 = {
    "vocab_size": WORDS,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "use_cache": False,
}
WHISPER = BART | {
    "pad_token_id": 0,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 20,
}
WAV2VEC2 = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (8, 8),
    "conv_kernel": (5, 3),
    "conv_stride": (3, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "vocab_size": WORDS,
}
BOTH = two_texts("position_ids", "decoder_position_ids")
TABLES = ("encoder.embed_positions", "decoder.embed_positions")
"""Sines that torch keeps among its weights, and Flax computes."""
GATED = T5 | {"feed_forward_proj": "gated-gelu"}

PAIRS = (
    Pair("Bart", BART, BOTH, activation="activation_function"),
    Pair("Blenderbot", BART, BOTH, activation="activation_function"),
    Pair("BlenderbotSmall", BART, BOTH, activation="activation_function"),
    Pair("LongT5", T5 | {"encoder_attention_type": "local"}, two_texts(), activation="feed_forward_proj"),
    Pair("Marian", MARIAN, BOTH, ignore_torch=TABLES, activation="activation_function"),
    Pair("MBart", BART, BOTH, activation="activation_function"),
    Pair("MT5", GATED, two_texts(), activation="feed_forward_proj"),
    Pair("Pegasus", BART, BOTH, ignore_torch=TABLES, activation="activation_function"),
    Pair("T5", T5, two_texts(), activation="feed_forward_proj"),
    Pair("Wav2Vec2", WAV2VEC2, waves),
    Pair("Whisper", WHISPER, speech, activation="activation_function"),
)
