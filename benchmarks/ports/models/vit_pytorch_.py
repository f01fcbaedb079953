"""vit-pytorch: the model of each of its files that is called with images, video or signals alone."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from ..case import Case, Maker, normal

SETTINGS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 32,
    "dim_head": 8,
    "frames": 4,
    "frame_patch_size": 2,
    "image_patch_size": 8,
    "seq_len": 32,
    "window_size": 4,
}
"""What a constructor gets for an argument of such a name that has no default."""
IMAGES, VIDEO, SIGNAL = (normal(2, 3, 32, 32),), (normal(2, 3, 4, 32, 32),), (normal(2, 3, 32),)
OF_64 = (normal(2, 3, 64, 64),)
STAGES = {"s1_emb_dim": 8, "s2_emb_dim": 16, "s3_emb_dim": 24}
MODELS: dict[str, tuple[str, tuple[Maker, ...], dict[str, Any]]] = {
    "ats_vit": ("ViT", IMAGES, {"max_tokens_per_depth": (8, 4)}),
    "attn_residual_with_dca_simple_vit": ("SimpleViT", IMAGES, {}),
    "cait": ("CaiT", IMAGES, {"cls_depth": 1}),
    "cct": ("CCT", IMAGES, {"img_size": 32, "embedding_dim": 16, "num_layers": 2, "num_heads": 2}),
    "cct_3d": (
        "CCT",
        VIDEO,
        {
            "img_size": 32,
            "num_frames": 4,
            "embedding_dim": 16,
            "num_layers": 2,
            "num_heads": 2,
            "frame_kernel_size": 3,
            "n_input_channels": 3,
        },
    ),
    "cross_vit": (
        "CrossViT",
        OF_64,
        {"image_size": 64, "sm_dim": 16, "lg_dim": 24, "depth": 1, "sm_patch_size": 8, "lg_patch_size": 16},
    ),
    "crossformer": (
        "CrossFormer",
        OF_64,
        {
            "dim": (32, 32, 64, 64),
            "depth": (1, 1, 1, 1),
            "global_window_size": (4, 2, 2, 1),
            "local_window_size": 2,
        },
    ),
    "cvt": ("CvT", OF_64, {**STAGES}),
    "deepvit": ("DeepViT", IMAGES, {}),
    "jet_vit": ("JetViT", IMAGES, {"dim_head": 8}),
    "jumbo_vit": ("JumboViT", IMAGES, {"num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 2}),
    "learnable_memory_vit": ("ViT", IMAGES, {}),
    "levit": (
        "LeViT",
        OF_64,
        {"image_size": 64, "dim": (16, 24, 32), "depth": 1, "heads": (1, 2, 2), "mlp_mult": 2},
    ),
    "look_vit": ("LookViT", IMAGES, {"num_classes": 5, "highres_patch_size": 4}),
    "max_vit": ("MaxViT", OF_64, {"dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4}),
    "max_vit_with_registers": (
        "MaxViT",
        OF_64,
        {"dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4},
    ),
    "mobile_vit": (
        "MobileViT",
        OF_64,
        {
            "image_size": (64, 64),
            "dims": [16, 20, 24],
            "channels": [8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 32],
            "patch_size": (2, 2),
        },
    ),
    "nest": ("NesT", IMAGES, {"num_hierarchies": 2, "block_repeats": (1, 1), "patch_size": 4}),
    "normalized_vit": ("nViT", IMAGES, {}),
    "parallel_vit": ("ViT", IMAGES, {}),
    "pit": ("PiT", OF_64, {"image_size": 64, "depth": (1, 1)}),
    "regionvit": (
        "RegionViT",
        OF_64,
        {"dim": (8, 16, 24, 32), "depth": (1, 1, 1, 1), "window_size": 2, "num_classes": 5},
    ),
    "rvt": ("RvT", IMAGES, {}),
    "scalable_vit": (
        "ScalableViT",
        OF_64,
        {
            "dim": 8,
            "heads": (1, 2, 2, 2),
            "depth": (1, 1, 1, 1),
            "ssa_dim_key": (8, 8, 8, 8),
            "reduction_factor": (4, 2, 1, 1),
            "window_size": (4, 2, None, None),
        },
    ),
    "simple_flash_attn_vit": ("SimpleViT", IMAGES, {}),
    "simple_flash_attn_vit_3d": ("SimpleViT", VIDEO, {}),
    "simple_uvit": ("SimpleUViT", IMAGES, {}),
    "simple_vit": ("SimpleViT", IMAGES, {}),
    "simple_vit_1d": ("SimpleViT", SIGNAL, {}),
    "simple_vit_3d": ("SimpleViT", VIDEO, {}),
    "simple_vit_attn_residual": ("SimpleViTAttnResidual", IMAGES, {}),
    "simple_vit_orthog_residual_update": ("SimpleViT", IMAGES, {}),
    "simple_vit_with_fft": ("SimpleViT", IMAGES, {"freq_patch_size": 8}),
    "simple_vit_with_hyper_connections": ("SimpleViT", IMAGES, {"num_residual_streams": 2}),
    "simple_vit_with_patch_dropout": ("SimpleViT", IMAGES, {"patch_dropout": 0.0}),
    "simple_vit_with_qk_norm": ("SimpleViT", IMAGES, {}),
    "simple_vit_with_register_tokens": ("SimpleViT", IMAGES, {}),
    "simple_vit_with_relative_proj_pos_bias": ("SimpleViT", IMAGES, {}),
    "simple_vit_with_sparse_gating": ("SimpleViTWithSparseGating", IMAGES, {}),
    "simple_vit_with_specialized_cls": ("SimpleViT", IMAGES, {}),
    "simple_vit_with_value_residual": ("SimpleViT", IMAGES, {}),
    "t2t": (
        "T2TViT",
        OF_64,
        {"image_size": 64, "t2t_layers": ((7, 4), (3, 2)), "depth": 2, "heads": 2, "mlp_dim": 32},
    ),
    "twins_svt": (
        "TwinsSVT",
        OF_64,
        {
            **{f"s{n}_emb_dim": 8 * n for n in (1, 2, 3, 4)},
            "s1_local_patch_size": 4,
            "s2_local_patch_size": 4,
            "s3_local_patch_size": 2,
            "s4_local_patch_size": 1,
            "s1_global_k": 2,
            "s2_global_k": 2,
            "s3_global_k": 2,
            "s4_global_k": 1,
            "s3_depth": 1,
            "s4_depth": 1,
            "num_classes": 5,
        },
    ),
    "vat_siglip": (
        "SigLIP",
        IMAGES,
        {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32},
    ),
    "vit": ("ViT", IMAGES, {}),
    "vit_1d": ("ViT", SIGNAL, {}),
    "vit_3d": ("ViT", VIDEO, {}),
    "vit_5": ("ViT", IMAGES, {}),
    "vit_detpool": ("ViTDetPool", IMAGES, {}),
    "vit_for_small_dataset": ("ViT", IMAGES, {}),
    "vit_with_decorr": ("ViT", IMAGES, {}),
    "vit_with_keel_post_ln": ("ViT", IMAGES, {}),
    "vit_with_patch_dropout": ("ViT", IMAGES, {"patch_dropout": 0.0}),
    "vit_with_patch_merger": (
        "ViT",
        IMAGES,
        {"depth": 3, "patch_merge_layer": 1, "patch_merge_num_tokens": 4},
    ),
    "vivit": ("ViViT", VIDEO, {"spatial_depth": 1, "temporal_depth": 1}),
    "vivit_with_moss": ("ViViT", VIDEO, {"spatial_depth": 1, "temporal_depth": 1}),
    "xcit": ("XCiT", IMAGES, {"cls_depth": 1}),
}
"""The class of each file, its inputs, and what differs from SETTINGS."""


def case(name: str) -> Case:
    kind, inputs, own = MODELS[name]

    def make() -> torch.nn.Module:
        model: Any = getattr(importlib.import_module(f"vit_pytorch.{name}"), kind)
        parameters = inspect.signature(model).parameters.values()
        general = {
            p.name: SETTINGS[p.name] for p in parameters if p.default is p.empty and p.name in SETTINGS
        }
        return model(**{**general, **own})

    return Case(name, make, inputs)


CASES = tuple(map(case, MODELS))
