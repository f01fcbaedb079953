"""The table of cases: a file for each group of models."""

from __future__ import annotations

from . import (
    denoising_diffusion_,
    diffusers_,
    kornia_,
    labml_,
    monai_,
    open_clip_,
    ours,
    pytorch_cifar_,
    pytorch_examples,
    smp_,
    timm_,
    torchaudio_,
    torchvision_cnn,
    torchvision_modern,
    torchvision_segmentation,
    torchvision_video,
    transformers_,
    vit_pytorch_,
    x_transformers_,
)

GROUPS = {
    "ours": ours.CASES,
    "torchvision_cnn": torchvision_cnn.CASES,
    "torchvision_modern": torchvision_modern.CASES,
    "torchvision_segmentation": torchvision_segmentation.CASES,
    "torchvision_video": torchvision_video.CASES,
    "transformers": transformers_.CASES,
    "pytorch_examples": pytorch_examples.CASES,
    "timm": timm_.CASES,
    "smp": smp_.CASES,
    "vit_pytorch": vit_pytorch_.CASES,
    "denoising_diffusion": denoising_diffusion_.CASES,
    "labml": labml_.CASES,
    "pytorch_cifar": pytorch_cifar_.CASES,
    "monai": monai_.CASES,
    "diffusers": diffusers_.CASES,
    "x_transformers": x_transformers_.CASES,
    "open_clip": open_clip_.CASES,
    "kornia": kornia_.CASES,
    "torchaudio": torchaudio_.CASES,
}
BY_NAME = {f"{group}/{case.name}": case for group, cases in GROUPS.items() for case in cases}
REFUSED = frozenset((*smp_.REFUSED, *pytorch_cifar_.REFUSED))
FRAMES = (
    *("timm", "smp", "vit_pytorch", "denoising_diffusion", "labml", "pytorch_cifar", "monai", "diffusers"),
    *("x_transformers", "open_clip", "kornia", "torchaudio"),
)
"""The groups that are all of a library, of which one half is only asked."""
