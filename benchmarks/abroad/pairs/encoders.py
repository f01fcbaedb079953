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
DISTILBERT = {
    "vocab_size": WORDS,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 20,
}
NARROW = BERT | {"embedding_size": 8}
SENTENCES = text("token_type_ids", "position_ids", flax=("head_mask",))
FROM_TWO = text("token_type_ids", "position_ids", flax=("head_mask",), offset=2)
"""Of RoBERTa, whose first positions are those of padding, and the same in torch for ever."""

PAIRS = (
    Pair("Roberta, positions from 0", BERT, SENTENCES, "RobertaModel", bugs=False),
    Pair("Albert", NARROW | {"num_hidden_groups": 1}, text("token_type_ids", "position_ids")),
    Pair("Bert", BERT, SENTENCES),
    Pair("BigBird", BERT | {"attention_type": "original_full"}, SENTENCES),
    Pair("DistilBert", DISTILBERT, text(), activation="activation"),
    Pair("Electra", NARROW, SENTENCES),
    Pair("Roberta", BERT, FROM_TWO),
    Pair("RobertaPreLayerNorm", BERT, FROM_TWO),
    Pair(
        "RoFormer",
        BERT,
        text("token_type_ids", flax=("head_mask",)),
        ignore_torch=("encoder.embed_positions",),
    ),
    Pair("XLMRoberta", BERT, FROM_TWO),
)
