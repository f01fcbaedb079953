"""jax-resnet, vision_transformer and big_vision (Linen), beside torchvision and timm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..pair import CLASSES, TANH, Pair, images, source
from .eqxvision_ import STAGES, torchvision_models

LAST = {"layout": "channels_last"}
WIDTH, HEADS, DEPTH, HIDDEN = 12, 2, 2, 20
VIT: Mapping[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": WIDTH,
    "depth": DEPTH,
    "num_heads": HEADS,
    "mlp_ratio": HIDDEN / WIDTH,
    "num_classes": CLASSES,
}
BIT: Mapping[str, Any] = {"layers": [1, 1], "channels": [256, 512], "stem_chs": 64, "num_classes": CLASSES}


def timm_model(module: str, name: str, **settings: Any) -> Any:
    torchvision_models()
    import importlib

    return getattr(importlib.import_module(f"timm.models.{module}"), name)(**settings)


def timm_vit(**settings: Any) -> Any:
    return timm_model("vision_transformer", "VisionTransformer", **(VIT | settings))


def resnet_torch(block: str) -> Any:
    resnet = torchvision_models().resnet
    return resnet.ResNet(getattr(resnet, block), STAGES, num_classes=CLASSES)


def jax_resnet(block: str, stem: str = "ResNetStem") -> Any:
    module = source("jax-resnet", "jax_resnet.resnet")
    return module.ResNet(
        getattr(module, block), stage_sizes=STAGES, n_classes=CLASSES, stem_cls=getattr(module, stem)
    )


def resnest_torch() -> Any:
    torchvision_models()
    from timm.models.resnest import ResNestBottleneck  # type: ignore[import-not-found]
    from timm.models.resnet import ResNet  # type: ignore[import-not-found]

    return ResNet(
        ResNestBottleneck,
        STAGES,
        num_classes=CLASSES,
        stem_type="deep",
        stem_width=32,
        avg_down=True,
        base_width=64,
        cardinality=1,
        block_args={"radix": 2, "avd": True, "avd_first": False},
    )


def google_vit() -> Any:
    import ml_collections  # type: ignore[import-not-found]

    module = source("vision_transformer", "vit_jax.models_vit")
    return module.VisionTransformer(
        num_classes=CLASSES,
        patches=ml_collections.ConfigDict({"size": (4, 4)}),
        transformer={"num_layers": DEPTH, "mlp_dim": HIDDEN, "num_heads": HEADS},
        hidden_size=WIDTH,
    )


def google_mixer() -> Any:
    import types

    module = source("vision_transformer", "vit_jax.models_mixer")
    return module.MlpMixer(types.SimpleNamespace(size=(4, 4)), CLASSES, DEPTH, WIDTH, 6, 24)


def big_vision(file: str) -> Any:
    from .. import shims

    shims.tensorflow_files()
    return source("big_vision", f"big_vision.models.{file}")


def vision_model(file: str, **settings: Any) -> Any:
    return big_vision(file).Model(CLASSES, **settings)


def timm_mixer() -> Any:
    return timm_model(
        "mlp_mixer",
        "MlpMixer",
        num_classes=CLASSES,
        img_size=16,
        patch_size=4,
        num_blocks=DEPTH,
        embed_dim=WIDTH,
        mlp_ratio=(0.5, 2.0),
    )


def timm_bit(preact: bool) -> Any:
    """ResNetV2 of timm: before the activation, or after it, with standardised weights."""
    torchvision_models()
    from timm.layers import GroupNormAct, StdConv2d  # type: ignore[import-not-found]
    from timm.models.resnetv2 import ResNetV2  # type: ignore[import-not-found]

    return ResNetV2(
        **BIT,
        preact=preact,
        stem_type="fixed" if preact else "same",
        conv_layer=functools.partial(StdConv2d, eps=1e-8 if preact else 1e-5),
        norm_layer=functools.partial(GroupNormAct, num_groups=32),
    )


def pair(file: str, there: Any, here: Any, inputs: Any, **fields: Any) -> Pair:
    compared = LAST | dict(fields.pop("compared", {}))
    return Pair(file, there, here, inputs, compared, **fields)


PAIRS = (
    pair(
        "jax-resnet/jax_resnet/resnet.py",
        functools.partial(resnet_torch, "Bottleneck"),
        functools.partial(jax_resnet, "ResNetBottleneckBlock"),
        images(),
    ),
    pair(
        "jax-resnet/jax_resnet/splat.py",
        resnest_torch,
        functools.partial(jax_resnet, "ResNeStBottleneckBlock", "ResNetDStem"),
        images(),
    ),
    pair("vision_transformer/vit_jax/models_vit.py", timm_vit, google_vit, images(16), **TANH),
    pair("vision_transformer/vit_jax/models_mixer.py", timm_mixer, google_mixer, images(16), **TANH),
    pair(
        "big_vision/big_vision/models/vit.py",
        functools.partial(timm_vit, class_token=False, global_pool="map"),
        functools.partial(
            vision_model,
            "vit",
            patch_size=(4, 4),
            width=WIDTH,
            depth=DEPTH,
            mlp_dim=HIDDEN,
            num_heads=HEADS,
            pool_type="map",
        ),
        images(16),
        compared={"outputs": {"": 0}},
        **TANH,
    ),
    pair(
        "big_vision/big_vision/models/mlp_mixer.py",
        timm_mixer,
        lambda: big_vision("mlp_mixer").MlpMixer(
            num_classes=CLASSES,
            patch_size=(4, 4),
            num_blocks=DEPTH,
            hidden_dim=WIDTH,
            tokens_mlp_dim=6,
            channels_mlp_dim=24,
        ),
        images(16),
        compared={"outputs": {"": 0}},
        **TANH,
    ),
    pair(
        "big_vision/big_vision/models/bit.py",
        functools.partial(timm_bit, False),
        functools.partial(vision_model, "bit", depth=(1, 1)),
        images(),
        compared={"outputs": {"": 0}},
    ),
    pair(
        "big_vision/big_vision/models/bit_paper.py",
        functools.partial(timm_bit, True),
        functools.partial(vision_model, "bit_paper", depth=(1, 1)),
        images(),
        compared={"outputs": {"": 0}},
    ),
)
