"""Encoders of text."""

from __future__ import annotations

from ..inputs import WORDS, text
from ..pair import Pair

BERT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
}
PAIRS = (Pair("Bert", BERT, text("token_type_ids", "position_ids", flax=("head_mask",))),)
