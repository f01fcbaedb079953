"""Decoders."""

from __future__ import annotations

from ..inputs import WORDS, text
from ..pair import Pair

GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20, "use_cache": False}
PAIRS = (Pair("GPT2", GPT2, text("position_ids"), activation="activation_function"),)
