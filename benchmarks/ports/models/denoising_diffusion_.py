"""denoising-diffusion-pytorch: the network of each of its files that has one."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..case import Case, Maker, normal


def of(file: str, name: str, *args: Any, **kwargs: Any) -> Any:
    def make() -> torch.nn.Module:
        module = importlib.import_module(f"denoising_diffusion_pytorch.{file}")
        return getattr(module, name)(*args, **kwargs)

    return make


def times(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(2, generator=generator)


IMAGES: tuple[Maker, ...] = (normal(2, 3, 16, 16), times)
KARRAS: dict[str, Any] = {
    "dim": 16,
    "dim_max": 32,
    "channels": 3,
    "num_downsamples": 1,
    "num_blocks_per_stage": 1,
    "attn_dim_head": 8,
    "fourier_dim": 8,
}
"""Sizes of the networks after Karras et al."""
UNET: dict[str, Any] = {"dim": 8, "dim_mults": (1, 2), "attn_dim_head": 8, "attn_heads": 2}
UVIT: dict[str, Any] = {
    "dim": 8,
    "dim_mults": (1, 2),
    "vit_depth": 1,
    "attn_dim_head": 8,
    "attn_heads": 2,
    "downsample_factor": 2,
}
CASES = (
    Case("denoising_diffusion_pytorch", of("denoising_diffusion_pytorch", "Unet", **UNET), IMAGES),
    Case(
        "denoising_diffusion_pytorch_1d",
        of("denoising_diffusion_pytorch_1d", "Unet1D", channels=3, **UNET),
        (normal(2, 3, 16), times),
    ),
    Case(
        "classifier_free_guidance",
        of("classifier_free_guidance", "Unet", num_classes=4, cond_drop_prob=0.0, **UNET),
        (*IMAGES, lambda generator: torch.randint(4, (2,), generator=generator)),
    ),
    Case(
        "continuous_time_gaussian_diffusion",
        of("continuous_time_gaussian_diffusion", "learned_noise_schedule", log_snr_max=4.0, log_snr_min=-4.0),
        (times,),
    ),
    Case("guided_diffusion", of("guided_diffusion", "Unet", dim=8, dim_mults=(1, 2)), IMAGES),
    Case("repaint", of("repaint", "Unet", **UNET), IMAGES),
    Case("simple_diffusion", of("simple_diffusion", "UViT", **UVIT), IMAGES),
    Case("karras_unet", of("karras_unet", "KarrasUnet", image_size=16, attn_res=(8,), **KARRAS), IMAGES),
    Case(
        "karras_unet_1d",
        of("karras_unet_1d", "KarrasUnet1D", seq_len=16, attn_res=(8,), **KARRAS),
        (normal(2, 3, 16), times),
    ),
    Case(
        "karras_unet_3d",
        of("karras_unet_3d", "KarrasUnet3D", image_size=8, frames=4, attn_res=(4,), **KARRAS),
        (normal(2, 3, 4, 8, 8), times),
    ),
)
