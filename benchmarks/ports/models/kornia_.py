"""kornia: 32 drawn by a seed from the modules of five packages that take images or patches alone."""

from __future__ import annotations

import importlib
import random
from typing import Any

import torch

from ..case import Case, Maker

IMAGE = ((2, 3, 16, 16),)
GRAY, PATCH = ((2, 1, 32, 32),), ((3, 1, 32, 32),)
TWO = (*IMAGE, *IMAGE)
KERNEL: dict[str, Any] = {"kernel_size": (3, 3)}
MODULES: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    **{
        name: ("feature", PATCH, {"pretrained": False})
        for name in ("HardNet", "HyNet", "SOSNet", "TFeat", "OriNet")
    },
    "PatchAffineShapeEstimator": ("feature", ((3, 1, 19, 19),), {}),
    "SIFTDescriptor": ("feature", ((3, 1, 41, 41),), {}),
    "PatchDominantGradientOrientation": ("feature", PATCH, {}),
    **{name: ("feature", GRAY, {}) for name in ("BlobHessian", "CornerGFTT", "BlobDoGSingle")},
    "KeyNet": ("feature", GRAY, {"pretrained": False}),
    "DenseSIFTDescriptor": ("feature", GRAY, {}),
    "CornerHarris": ("feature", GRAY, {"k": 0.04}),
    "FilterResponseNorm2d": ("feature", IMAGE, {"num_features": 3}),
    "TLU": ("feature", IMAGE, {"num_features": 3}),
    "DeFMO": ("feature", ((1, 6, 32, 32),), {"pretrained": False}),
    "BilateralBlur": ("filters", IMAGE, {**KERNEL, "sigma_color": 0.1, "sigma_space": (1.5, 1.5)}),
    **dict.fromkeys(("BoxBlur", "MedianBlur"), ("filters", IMAGE, KERNEL)),
    **{name: ("filters", IMAGE, {"kernel_size": 3}) for name in ("BlurPool2D", "MaxBlurPool2D", "Laplacian")},
    "EdgeAwareBlurPool2D": ("filters", IMAGE, {"kernel_size": 3}),
    "GaussianBlur2d": ("filters", IMAGE, {**KERNEL, "sigma": (1.5, 1.5)}),
    "UnsharpMask": ("filters", IMAGE, {**KERNEL, "sigma": (1.5, 1.5)}),
    "GuidedBlur": ("filters", TWO, {**KERNEL, "eps": 0.1}),
    "MotionBlur": ("filters", IMAGE, {"kernel_size": 3, "angle": 35.0, "direction": 0.5}),
    **{name: ("filters", IMAGE, {}) for name in ("Canny", "Sobel", "SpatialGradient", "OtsuThreshold")},
    "SpatialGradient3d": ("filters", ((1, 2, 4, 6, 6),), {}),
    **{
        f"{first}To{second}": ("color", IMAGE, {})
        for first, second in (
            *(("Rgb", "Grayscale"), ("Rgb", "Hls"), ("Rgb", "Hsv"), ("Rgb", "Lab"), ("Rgb", "Luv")),
            *(("Rgb", "Xyz"), ("Rgb", "Ycbcr"), ("Rgb", "Yuv"), ("Rgb", "LinearRgb"), ("Hls", "Rgb")),
            *(
                ("Hsv", "Rgb"),
                ("Lab", "Rgb"),
                ("Luv", "Rgb"),
                ("Xyz", "Rgb"),
                ("Ycbcr", "Rgb"),
                ("Yuv", "Rgb"),
            ),
        )
    },
    "Sepia": ("color", IMAGE, {}),
    "RgbToYuv420": ("color", IMAGE, {}),
    "AddWeighted": ("enhance", TWO, {"alpha": 0.3, "beta": 0.5, "gamma": 0.1}),
    "AdjustContrast": ("enhance", IMAGE, {"contrast_factor": 1.3}),
    "AdjustGamma": ("enhance", IMAGE, {"gamma": 1.4}),
    "AdjustHue": ("enhance", IMAGE, {"hue_factor": 0.2}),
    "AdjustSaturation": ("enhance", IMAGE, {"saturation_factor": 1.3}),
    "AdjustSigmoid": ("enhance", IMAGE, {}),
    "AdjustLog": ("enhance", IMAGE, {}),
    "IntegralImage": ("enhance", IMAGE, {}),
    "CauchyLoss": ("losses", TWO, {}),
    "CharbonnierLoss": ("losses", TWO, {"reduction": "mean"}),
    "WelschLoss": ("losses", TWO, {"reduction": "mean"}),
    "SSIMLoss": ("losses", TWO, {"window_size": 5}),
    "PSNRLoss": ("losses", TWO, {"max_val": 1.0}),
    "TotalVariation": ("losses", IMAGE, {}),
    "InverseDepthSmoothnessLoss": ("losses", ((2, 1, 8, 8), (2, 3, 8, 8)), {}),
    "RRDBNet": ("models", IMAGE, {"num_in_ch": 3, "num_out_ch": 3, "num_feat": 8, "num_block": 1}),
}
"""The package, the shapes of the inputs and the constructor's arguments."""
NUMBER, SEED = 32, 32


def unit(*shape: int) -> Maker:
    """Make an image: numbers between 0 and 1."""
    return lambda generator: torch.rand(shape, generator=generator)


def case(name: str) -> Case:
    package, shapes, settings = MODULES[name]

    def make() -> torch.nn.Module:
        from ..vision import torchvision

        torchvision()
        return getattr(importlib.import_module(f"kornia.{package}"), name)(**settings)

    return Case(name, make, tuple(unit(*shape) for shape in shapes))


CASES = tuple(case(name) for name in random.Random(SEED).sample(sorted(MODULES), NUMBER))
