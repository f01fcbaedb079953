"""Decoders: language models of the words before."""

from __future__ import annotations

from ..inputs import WORDS, text
from ..pair import Pair

SIZES = {"vocab_size": WORDS, "use_cache": False}
GPT = SIZES | {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20}
NEO = SIZES | {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 20}
NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 3}
LLAMA = SIZES | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 20,
}
OPT = SIZES | {
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
    "word_embed_proj_dim": 16,
}
XGLM = SIZES | {
    "d_model": 16,
    "ffn_dim": 24,
    "num_layers": 2,
    "attention_heads": 2,
    "max_position_embeddings": 20,
}
POSITIONS = text("position_ids")

PAIRS = (
    Pair("Bloom", SIZES | {"hidden_size": 16, "n_layer": 2, "n_head": 2}, text(), activation=None),
    Pair("Gemma", LLAMA | {"head_dim": 8}, POSITIONS, activation="hidden_activation"),
    Pair("GPT2", GPT, POSITIONS, activation="activation_function"),
    Pair("GPTJ", GPT | {"rotary_dim": 4}, POSITIONS, activation="activation_function"),
    Pair("GPTNeo", NEO, POSITIONS, activation="activation_function"),
    Pair("Llama", LLAMA, POSITIONS),
    Pair("Mistral", LLAMA | {"sliding_window": 3}, POSITIONS, cure={"sliding_window": 2}),
    Pair("OPT", OPT, POSITIONS, activation="activation_function"),
    Pair("XGLM", XGLM, POSITIONS, activation="activation_function"),
)
