"""The torch sides of transformers, built from small configurations.

Attention is the one that its models write out ("eager"), and there is no cache. One row of words is shorter.
"""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, Maker, integers, normal

WORDS, ROWS, LENGTH = 30, 3, 7
BERT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
NARROW = BERT | {"embedding_size": 8}
DISTILBERT = {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
GPT = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20}
NEO = {"vocab_size": WORDS, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 20}
NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 3}
LLAMA = BERT | {"num_attention_heads": 4, "num_key_value_heads": 2}
OPT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
    "word_embed_proj_dim": 16,
}
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
}
BART = {"vocab_size": WORDS, "d_model": 16, "max_position_embeddings": 20}
BART |= {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
BART |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32}
WHISPER = BART | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WAV2VEC2 = BERT | {"conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (5, 3)}
WAV2VEC2 |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}


def padding(_: torch.Generator) -> torch.Tensor:
    """The mask of words; the second row has two less."""
    return (torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 2], [LENGTH]])).long()


def model(name: str, settings: dict[str, Any], *inputs: Maker, kind: str = "", **kwargs: Any) -> Case:
    """`Bert`: BertModel, with what BertConfig is given."""

    def make() -> torch.nn.Module:
        import transformers

        given = {"attn_implementation": "eager", "use_cache": False, **settings}
        settings_of = getattr(transformers, f"{name.removesuffix('Encoder')}Config")
        return getattr(transformers, kind or f"{name}Model")(settings_of(**given))

    return Case(name, make, inputs, kwargs)


def text(name: str, settings: dict[str, Any], **more: Any) -> Case:
    return model(name, settings, words, attention_mask=padding, **more)


words = integers(WORDS, ROWS, LENGTH)
images = normal(ROWS, 3, 16, 16)

CASES = (
    text("Bert", BERT),
    text("DistilBert", DISTILBERT),
    text("Roberta", BERT),
    text("Albert", NARROW),
    text("Electra", NARROW),
    text("T5Encoder", T5),
    model("Bart", BART, words, padding, words),
    text("GPT2", GPT),
    text("GPTNeo", NEO),
    text("GPTJ", GPT | {"rotary_dim": 4}),
    text("GPTNeoX", BERT),
    text("OPT", OPT),
    text("Llama", LLAMA),
    text("Mistral", LLAMA | {"sliding_window": 3}),
    text("Gemma", LLAMA | {"head_dim": 8}),
    text("Qwen2", LLAMA),
    text("Phi", LLAMA),
    model("ViT", VIT, images),
    text("CLIPText", BERT | {"eos_token_id": 2}),
    model("CLIPVision", VIT, images),
    model("ConvNext", CONVNEXT, normal(ROWS, 3, 32, 32)),
    model("Whisper", WHISPER, normal(ROWS, 8, 20), decoder_input_ids=words),
    model("Wav2Vec2", WAV2VEC2, normal(ROWS, 100)),
)
