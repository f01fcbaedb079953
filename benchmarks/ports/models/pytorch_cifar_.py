"""pytorch-cifar: the smallest model of each of its files, from a checkout that PYTORCH_CIFAR names."""

from __future__ import annotations

import importlib
import os
import sys

import torch

from ..case import Case, normal

MAKERS = {
    "densenet": "densenet_cifar",
    "dla": "DLA",
    "dla_simple": "SimpleDLA",
    "dpn": "DPN26",
    "efficientnet": "EfficientNetB0",
    "googlenet": "GoogLeNet",
    "lenet": "LeNet",
    "mobilenet": "MobileNet",
    "mobilenetv2": "MobileNetV2",
    "pnasnet": "PNASNetA",
    "preact_resnet": "PreActResNet18",
    "regnet": "RegNetX_200MF",
    "resnet": "ResNet18",
    "resnext": "ResNeXt29_2x64d",
    "senet": "SENet18",
    "shufflenet": "ShuffleNetG2",
    "shufflenetv2": "ShuffleNetV2",
    "vgg": "VGG",
}
REFUSED = ("shufflenet",)
"""A number of channels there is a float, which torch does not take."""
ARGUMENTS = {"shufflenetv2": (0.5,), "vgg": ("VGG11",)}


def of(file: str) -> torch.nn.Module:
    folder = os.environ.get("PYTORCH_CIFAR")
    if folder is None:
        raise FileNotFoundError(
            "PYTORCH_CIFAR is not set: the folder of a checkout of kuangliu/pytorch-cifar"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(f"models.{file}")
    net: torch.nn.Module = getattr(module, MAKERS[file])(*ARGUMENTS.get(file, ()))
    return net


CASES = tuple(Case(file, lambda file=file: of(file), (normal(2, 3, 32, 32),)) for file in MAKERS)
