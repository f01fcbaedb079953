"""Models of images: Flax has the channels last inside."""

from __future__ import annotations

from ..inputs import WORDS, denoising, image, image_and_text
from ..pair import Pair
from .encoders import BERT

LAST = ("channels_last", "same")
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 4,
}
DINO = {name: value for name, value in VIT.items() if name != "intermediate_size"}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
REGNET = RESNET | {"groups_width": 4}
WORDS_OF_CLIP = {**{name: BERT[name] for name in BERT if name != "type_vocab_size"}, "projection_dim": 8}
CLIP = {
    "text_config": WORDS_OF_CLIP | {"vocab_size": WORDS},
    "vision_config": VIT | {"projection_dim": 8},
    "projection_dim": 8,
}
DUAL = {
    "text_config": BERT | {"model_type": "bert"},
    "vision_config": VIT | {"model_type": "vit"},
    "projection_dim": 8,
}
BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1}
UNET = BLOCKS | {
    "sample_size": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 2,
}
VAE = BLOCKS | {
    "sample_size": 16,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 8,
}

PAIRS = (
    Pair("Beit", VIT, image(), layout=LAST),
    Pair("CLIP", CLIP, image_and_text(), layout=LAST, activation="text_config.hidden_act"),
    Pair("Dinov2", DINO, image(), layout=LAST),
    Pair("RegNet", REGNET, image(), layout=LAST),
    Pair(
        "RegNet, training",
        REGNET,
        image(),
        "RegNetModel",
        layout=LAST,
        training=True,
        bugs=False,
    ),
    Pair("ResNet", RESNET, image(), layout=LAST),
    Pair("ResNet, training", RESNET, image(), "ResNetModel", layout=LAST, training=True, bugs=False),
    Pair("ViT", VIT, image(), layout=LAST),
    Pair(
        "VisionTextDualEncoder",
        DUAL,
        image_and_text("token_type_ids"),
        layout=LAST,
        activation="text_config.hidden_act",
    ),
    Pair("UNet2DCondition", UNET, denoising, library="diffusers", activation=None),
    Pair(
        "AutoencoderKL",
        VAE,
        image(name="sample"),
        torch="AutoencoderKL",
        library="diffusers",
        activation=None,
    ),
)
