"""bonsai (NNX), beside torchvision and transformers."""

from __future__ import annotations

import functools
from typing import Any

from ..pair import CLASSES, TANH, Pair, images, source
from .eqxvision_ import STAGES, torchvision_models
from .linen_ import DEPTH, HEADS, HIDDEN, LAST, WIDTH

SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
}
IMAGES = {"image_size": 16, "patch_size": 4}


def bonsai(name: str) -> Any:
    return source("bonsai", f"bonsai.models.{name}.modeling")


def rngs() -> Any:
    from flax import nnx

    return nnx.Rngs(0)


def of_transformers(model: str, config: str, **settings: Any) -> Any:
    torchvision_models()  # before transformers, which imports torchvision as well
    import transformers

    chosen = getattr(transformers, config)(**settings)
    chosen._attn_implementation = "eager"
    return getattr(transformers, model)(chosen)


def resnet_torch() -> Any:
    resnet = torchvision_models().resnet
    return resnet.ResNet(resnet.Bottleneck, STAGES, num_classes=CLASSES)


def resnet() -> Any:
    module = bonsai("resnet")
    return module.ResNet(module.ModelConfig(STAGES, CLASSES), rngs=rngs())


def densenet_torch() -> Any:
    return torchvision_models().DenseNet(4, (2, 1, 1, 1), 8, num_classes=CLASSES)


def densenet() -> Any:
    module = bonsai("densenet121")
    return module.DenseNet(module.ModelConfig(CLASSES, [2, 1, 1, 1], 4), rngs=rngs())


def efficientnet_torch() -> Any:
    efficientnet = torchvision_models().efficientnet
    rows = ((1, 3, 1, 32, 16, 1), (6, 5, 2, 16, 24, 2))
    blocks = [efficientnet.MBConvConfig(*row, 1.0, 1.0) for row in rows]
    return efficientnet.EfficientNet(blocks, 0.0, 0.0, CLASSES, last_channel=1280)


def efficientnet() -> Any:
    module = bonsai("efficientnet")
    rows = [module.BlockConfig(32, 16, 3, 1, 1, 1, 0.25, 1), module.BlockConfig(16, 24, 5, 2, 6, 2, 0.25, 2)]
    blocks = module.BlockConfigs(rows)
    config = module.ModelConfig(1.0, 1.0, 32, 0.0, 1, 0.99, 1e-5, blocks, CLASSES)
    return module.EfficientNet(config, rngs=rngs())


def convnext() -> Any:
    module = bonsai("convnext")
    return module.ConvNeXt(module.ModelConfig((1, 1), (8, 16), 0.0, CLASSES), rngs=rngs())


def vit() -> Any:
    module = bonsai("vit")
    config = module.ModelConfig((16, 16), (4, 4), 3, WIDTH, 0.0, 0.0, HEADS, HIDDEN, 1e-12, DEPTH, CLASSES)
    return module.ViTClassificationModel(config, rngs=rngs())


def dinov3() -> Any:
    module = bonsai("dinov3")
    config = module.ModelConfig((4, 4), image_size=16, **(SIZES | {"hidden_size": 16}))
    return module.Dinov3ViTModel(config, rngs=rngs())


PAIRS = (
    Pair("bonsai/bonsai/models/resnet/modeling.py", resnet_torch, resnet, images(), LAST),
    Pair(
        "bonsai/bonsai/models/densenet121/modeling.py",
        densenet_torch,
        densenet,
        images(),
        LAST,
        cause="padding",
        why="bonsai pads its first convolution and pool by SAME, which is uneven where they stride; "
        "torchvision pads them evenly, by 3 and 1. No setting of torch's layers is uneven.",
    ),
    Pair("bonsai/bonsai/models/efficientnet/modeling.py", efficientnet_torch, efficientnet, images(), LAST),
    Pair(
        "bonsai/bonsai/models/convnext/modeling.py",
        functools.partial(
            of_transformers,
            "ConvNextForImageClassification",
            "ConvNextConfig",
            num_stages=2,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_labels=CLASSES,
        ),
        convnext,
        images(),
        LAST | {"outputs": {"logits": ""}, "flax_kwargs": {"rngs": None}},
        cure={"eps": 1e-12},
        cause="epsilon",
        why="bonsai's norms have an epsilon of 1e-12; in transformers those of stages and blocks have 1e-6.",
    ),
    Pair(
        "bonsai/bonsai/models/vit/modeling.py",
        functools.partial(
            of_transformers,
            "ViTForImageClassification",
            "ViTConfig",
            num_labels=CLASSES,
            **SIZES,
            **IMAGES,
        ),
        vit,
        images(16),
        LAST | {"outputs": {"logits": ""}, "flax_kwargs": {"rngs": None}},
        **TANH,
    ),
    Pair(
        "bonsai/bonsai/models/dinov3/modeling.py",
        functools.partial(
            of_transformers,
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            **(SIZES | {"hidden_size": 16}),
            **IMAGES,
            num_register_tokens=4,
        ),
        dinov3,
        images(16),
        **TANH,
    ),
)
