"""The torch sides of transformers, built from small configurations."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, integers

SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def text(name: str, rows: int = 3, words: int = 6, **settings: Any) -> Case:
    """`Bert`: BertModel, with what BertConfig is given."""

    def make() -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**{**SMALL, **settings})
        return getattr(transformers, f"{name}Model")(config)

    below = {**SMALL, **settings}["vocab_size"]
    return Case(name, make, (integers(below, rows, words),))


CASES = (text("Bert"),)
