"""open_clip: its families of towers and its losses at small sizes."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, Maker, integers, normal

TEXT: dict[str, Any] = {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 2, "layers": 2}
VISION: dict[str, Any] = {"image_size": 32, "layers": 2, "width": 16, "patch_size": 8, "head_width": 8}
MULTI: dict[str, Any] = {**TEXT, "attn_pooler_heads": 2}
OF_TIMM: dict[str, Any] = {"image_size": 64, "timm_model_pretrained": False}
BOTH = (normal(2, 3, 32, 32), integers(32, 2, 8))
OF_64 = (normal(2, 3, 64, 64), integers(32, 2, 8))
PAIR = (normal(4, 8), normal(4, 8))
COCA = {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}


def scale(generator: torch.Generator) -> torch.Tensor:
    return torch.tensor(2.0)


MODELS: dict[str, tuple[str, tuple[Maker, ...], dict[str, Any]]] = {
    "vit": ("CLIP", BOTH, {"vision_cfg": VISION, "text_cfg": TEXT}),
    "vit_quickgelu": ("CLIP", BOTH, {"vision_cfg": VISION, "text_cfg": TEXT, "quick_gelu": True}),
    "vit_average": (
        "CLIP",
        BOTH,
        {"vision_cfg": {**VISION, "pool_type": "avg", "ls_init_value": 0.1}, "text_cfg": TEXT},
    ),
    "vit_sincos": (
        "CLIP",
        BOTH,
        {
            "vision_cfg": {
                **VISION,
                "pos_embed_type": "sin_cos_2d",
                "no_ln_pre": True,
                "final_ln_after_pool": True,
            },
            "text_cfg": {**TEXT, "pool_type": "last", "no_causal_mask": True},
        },
    ),
    "vit_attentional_pool": (
        "CLIP",
        BOTH,
        {"vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2}, "text_cfg": TEXT},
    ),
    "resnet": (
        "CLIP",
        OF_64,
        {
            "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
            "text_cfg": TEXT,
        },
    ),
    "text_pad": (
        "CustomTextCLIP",
        BOTH,
        {"vision_cfg": VISION, "text_cfg": {**TEXT, "embed_cls": True, "proj_bias": True}},
    ),
    "bias": ("CLIP", BOTH, {"vision_cfg": VISION, "text_cfg": TEXT, "init_logit_bias": -10.0}),
    "dictionary": ("CLIP", BOTH, {"vision_cfg": VISION, "text_cfg": TEXT, "output_dict": True}),
    "coca": (
        "CoCa",
        BOTH,
        {
            "vision_cfg": COCA,
            "text_cfg": {**TEXT, "embed_cls": True, "output_tokens": True},
            "multimodal_cfg": MULTI,
        },
    ),
    "timm_resnet": (
        "CustomTextCLIP",
        OF_64,
        {
            "vision_cfg": {
                **OF_TIMM,
                "timm_model_name": "resnet10t",
                "timm_pool": "abs_attn",
                "timm_proj": "mlp",
            },
            "text_cfg": TEXT,
        },
    ),
    "timm_convnext": (
        "CLIP",
        OF_64,
        {
            "vision_cfg": {
                **OF_TIMM,
                "timm_model_name": "convnext_atto",
                "timm_pool": "",
                "timm_proj": "linear",
            },
            "text_cfg": TEXT,
        },
    ),
    "clip_loss": ("ClipLoss", (*PAIR, scale), {}),
    "siglip_loss": ("SigLipLoss", (*PAIR, scale, scale), {}),
    "distill_loss": ("DistillClipLoss", (*PAIR, scale, *PAIR, scale), {}),
    "coca_loss": (
        "CoCaLoss",
        (*PAIR, normal(4, 5, 9), integers(9, 4, 5), scale),
        {"caption_loss_weight": 1.0, "clip_loss_weight": 1.0},
    ),
}


def case(name: str, model: str, inputs: tuple[Maker, ...], settings: dict[str, Any]) -> Case:
    def make() -> torch.nn.Module:
        from ..vision import torchvision

        torchvision()
        import open_clip
        from open_clip import loss

        sizes = {} if model.endswith("Loss") else {"embed_dim": 16 if model == "CoCa" else 8}
        return getattr(loss if model.endswith("Loss") else open_clip, model)(**sizes, **settings)

    return Case(name, make, inputs)


CASES = tuple(case(name, *row) for name, row in MODELS.items())
