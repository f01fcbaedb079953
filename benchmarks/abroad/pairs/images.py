"""Models of images: Flax has the channels last inside."""

from __future__ import annotations

from ..inputs import image
from ..pair import Pair

VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 4,
}
PAIRS = (Pair("ViT", VIT, image(), layout=("channels_last", "same")),)
