"""monai: of each file of monai.networks.nets one network, the smallest that uses the others of its file.

Ten files are left out. Their network is another library's, or they ask for packages, weights or lists of
images: cell_sam_wrapper, daf3d, hovernet, hyena_nd_unetr, milmodel, navit, netadapter, torchvision_fc and
transchex; and dints searches.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..case import Case, Maker, integers, normal

IMAGE, THREE = normal(2, 1, 32, 32), normal(2, 3, 32, 32)
LARGE, VOLUME = normal(2, 1, 64, 64), normal(1, 1, 16, 16, 16)
UNET: dict[str, Any] = {"in_channels": 1, "out_channels": 2, "channels": (4, 8, 8), "strides": (2, 2)}
DIFFUSION: dict[str, Any] = {
    "in_channels": 1,
    "num_res_blocks": 1,
    "channels": (8, 8),
    "attention_levels": (False, True),
    "norm_num_groups": 4,
    "num_head_channels": 4,
}
"""Sizes of the networks of diffusion models."""
LATENT: dict[str, Any] = {
    "num_res_blocks": 1,
    "channels": (8, 8),
    "attention_levels": (False, False),
    "latent_channels": 2,
    "norm_num_groups": 4,
}
PATCHES: dict[str, Any] = {
    "in_channels": 1,
    "img_size": (32, 32),
    "hidden_size": 16,
    "mlp_dim": 32,
    "num_heads": 2,
    "spatial_dims": 2,
}


def case(file: str, name: str, inputs: Any, *args: Any, **kwargs: Any) -> Case:
    """A class of a file of monai.networks.nets, made of `args` and `kwargs`."""

    def make() -> torch.nn.Module:
        net: torch.nn.Module = getattr(importlib.import_module(f"monai.networks.nets.{file}"), name)(
            *args, **kwargs
        )
        return net

    return Case(file, make, tuple(inputs) if isinstance(inputs, tuple) else (inputs,))


def classes(generator: torch.Generator) -> torch.Tensor:
    """Maps of three classes, one channel each."""
    numbers = torch.randint(3, (2, 32, 32), generator=generator)
    return torch.nn.functional.one_hot(numbers, 3).permute(0, 3, 1, 2).float()


TIMES: Maker = integers(100, 2)
CASES = (
    case(
        "ahnet",
        "AHNet",
        LARGE,
        spatial_dims=2,
        upsample_mode="bilinear",
        layers=(1, 1, 1, 1),
        psp_block_num=2,
    ),
    case("attentionunet", "AttentionUnet", IMAGE, 2, **UNET),
    case("autoencoder", "AutoEncoder", IMAGE, 2, 1, 2, (4, 8, 8), (2, 2, 1), num_res_units=1),
    case("autoencoderkl", "AutoencoderKL", IMAGE, 2, **LATENT),
    case("basic_unet", "BasicUNet", IMAGE, 2, features=(4, 4, 8, 8, 8, 4)),
    case("basic_unetplusplus", "BasicUNetPlusPlus", IMAGE, 2, features=(4, 4, 8, 8, 8, 4)),
    case("classifier", "Classifier", IMAGE, (1, 32, 32), 3, (4, 8), (2, 2)),
    case(
        "controlnet",
        "ControlNet",
        (IMAGE, TIMES, normal(2, 1, 64, 64)),
        2,
        **DIFFUSION,
        conditioning_embedding_num_channels=(4, 8),
    ),
    case("densenet", "DenseNet", IMAGE, 2, 1, 3, init_features=8, growth_rate=4, block_config=(2, 2)),
    case("diffusion_model_unet", "DiffusionModelUNet", (IMAGE, TIMES), 2, out_channels=1, **DIFFUSION),
    case("dynunet", "DynUNet", IMAGE, 2, 1, 2, (3, 3, 3), (1, 2, 2), (2, 2), filters=(4, 8, 8)),
    case("efficientnet", "EfficientNetBN", THREE, "efficientnet-b0", pretrained=False, num_classes=5),
    case("flexible_unet", "FlexibleUNet", THREE, 3, 2, "resnet18", decoder_channels=(16, 16, 8, 8, 8)),
    case(
        "fullyconnectednet",
        "VarFullyConnectedNet",
        normal(4, 6),
        6,
        5,
        3,
        (8, 8),
        (8, 8),
    ),
    case("generator", "Generator", normal(2, 6), (6,), (4, 4, 4), (8, 4), (2, 2)),
    case(
        "highresnet",
        "HighResNet",
        IMAGE,
        2,
        layer_params=(
            {"name": "conv_0", "n_features": 4, "kernel_size": 3},
            {"name": "res_1", "n_features": 4, "kernels": (3, 3), "repeat": 2},
            {"name": "res_2", "n_features": 8, "kernels": (3, 3), "repeat": 1},
            {"name": "conv_1", "n_features": 8, "kernel_size": 1},
            {"name": "conv_2", "kernel_size": 1},
        ),
    ),
    case(
        "masked_autoencoder_vit",
        "MaskedAutoEncoderViT",
        IMAGE,
        patch_size=(8, 8),
        num_layers=2,
        **PATCHES,
        decoder_hidden_size=16,
        decoder_mlp_dim=32,
        decoder_num_layers=1,
        decoder_num_heads=2,
    ),
    case(
        "mednext",
        "MedNeXt",
        IMAGE,
        2,
        4,
        1,
        2,
        kernel_size=3,
        blocks_down=(1, 1, 1, 1),
        blocks_bottleneck=1,
        blocks_up=(1, 1, 1, 1),
    ),
    case("patchgan_discriminator", "PatchDiscriminator", IMAGE, 2, 4, 1, num_layers_d=2),
    case("quicknat", "Quicknat", LARGE, num_classes=3, num_filters=4),
    case("regressor", "Regressor", IMAGE, (1, 32, 32), (3,), (4, 8), (2, 2)),
    case("regunet", "LocalNet", IMAGE, 2, 1, 4, (0, 1, 2), out_channels=2),
    case("resnet", "ResNet", IMAGE, "basic", [1, 1, 1, 1], [8, 8, 16, 16], 2, 1, num_classes=3),
    case("restormer", "Restormer", IMAGE, 2, 1, 1, 8, num_refinement_blocks=1),
    case(
        "segresnet", "SegResNetVAE", IMAGE, (32, 32), spatial_dims=2, blocks_down=(1, 1, 1), blocks_up=(1, 1)
    ),
    case("segresnet_ds", "SegResNetDS2", IMAGE, 2, 8, blocks_down=(1, 1, 1)),
    case("senet", "SENet", THREE, 2, 3, "se_bottleneck", (1, 1, 1, 1), 1, 4, num_classes=5),
    case(
        "spade_autoencoderkl",
        "SPADEAutoencoderKL",
        (IMAGE, classes),
        2,
        3,
        **LATENT,
        spade_intermediate_channels=4,
    ),
    case(
        "spade_diffusion_model_unet",
        "SPADEDiffusionModelUNet",
        (IMAGE, TIMES, classes),
        2,
        out_channels=1,
        label_nc=3,
        spade_intermediate_channels=4,
        **DIFFUSION,
    ),
    case("spade_network", "SPADENet", (classes, IMAGE), 2, 1, 1, 3, (32, 32), [8, 8], 4, True, 4),
    case(
        "swin_unetr",
        "SwinUNETR",
        LARGE,
        1,
        2,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 2, 2),
        feature_size=12,
        spatial_dims=2,
    ),
    case("transformer", "DecoderOnlyTransformer", integers(20, 2, 6), 20, 8, 8, 1, 2),
    case("unet", "UNet", IMAGE, 2, **UNET, num_res_units=1),
    case("unetr", "UNETR", IMAGE, 1, 2, (32, 32), 4, 24, 32, 2, spatial_dims=2),
    case("varautoencoder", "VarAutoEncoder", IMAGE, 2, (1, 32, 32), 1, 4, (4, 8), (2, 2)),
    case("vit", "ViT", IMAGE, patch_size=(8, 8), num_layers=2, classification=True, **PATCHES),
    case("vitautoenc", "ViTAutoEnc", IMAGE, patch_size=(16, 16), num_layers=2, **PATCHES, deconv_chns=4),
    case("vnet", "VNet", LARGE, 2, dropout_dim=2, dropout_prob_down=0.5),
    case("voxelmorph", "VoxelMorphUNet", normal(2, 2, 32, 32), 2, 2, 4, (4, 4, 4, 4), (4, 4)),
    case(
        "vqvae", "VQVAE", IMAGE, 2, 1, 1, (4, 8), 1, (4, 8), ((2, 4, 1, 1),) * 2, ((2, 4, 1, 1, 0),) * 2, 6, 4
    ),
)
