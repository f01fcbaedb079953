"""segmentation-models-pytorch: drawn by a seed from all pairs of an encoder and a decoder."""

from __future__ import annotations

import itertools
import random

import torch

from ..case import Case, normal

DECODERS = (
    *("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3", "DeepLabV3Plus"),
    *("UPerNet", "Segformer", "DPT"),
)
ENCODERS = (
    *("resnet18", "resnet34", "resnet50", "resnext50_32x4d", "dpn68", "dpn68b", "vgg11", "vgg11_bn", "vgg13"),
    *("vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "se_resnet50", "se_resnext50_32x4d"),
    *("densenet121", "densenet169", "densenet201", "densenet161", "efficientnet-b0", "efficientnet-b1"),
    *("efficientnet-b2", "efficientnet-b3", "efficientnet-b4", "efficientnet-b5", "mobilenet_v2", "xception"),
    *("timm-efficientnet-b0", "timm-efficientnet-b1", "timm-efficientnet-b2", "timm-efficientnet-b3"),
    *("timm-efficientnet-b4", "timm-efficientnet-b5", "timm-tf_efficientnet_lite0"),
    *("timm-tf_efficientnet_lite1", "timm-tf_efficientnet_lite2", "timm-tf_efficientnet_lite3"),
    *("timm-tf_efficientnet_lite4", "timm-skresnet18", "timm-skresnet34", "timm-skresnext50_32x4d"),
    *("mit_b0", "mit_b1", "mit_b2", "mobileone_s0", "mobileone_s1", "mobileone_s2", "mobileone_s3"),
    "mobileone_s4",
)
"""The encoders with at most 30 million parameters."""
UNSUPPORTED = {("mit_b", "UnetPlusPlus"), ("mit_b", "Linknet"), ("mit_b", "DPT")}
"""Pairs whose constructor raises in torch, by the beginning of the encoder's name."""
REFUSED = (
    *("DeepLabV3Plus, vgg16_bn", "DeepLabV3Plus, densenet201", "PAN, vgg11_bn", "PAN, dpn68"),
    "PAN, resnext50_32x4d",
)
"""The names of those drawn that torch refuses as well: dilation beside pooling, an image of one pixel."""
NUMBER, SEED = 40, 32


def pairs() -> list[tuple[str, str]]:
    possible = [
        (encoder, decoder)
        for encoder, decoder in itertools.product(ENCODERS, DECODERS)
        if decoder != "DPT" and not any(encoder.startswith(e) and decoder == d for e, d in UNSUPPORTED)
    ]
    return random.Random(SEED).sample(possible, NUMBER)


def case(encoder: str, decoder: str) -> Case:
    def make() -> torch.nn.Module:
        import segmentation_models_pytorch as smp

        return getattr(smp, decoder)(encoder, encoder_weights=None, classes=3)

    return Case(f"{decoder}, {encoder}", make, (normal(2, 3, 64, 64),))


CASES = tuple(case(*pair) for pair in pairs())
