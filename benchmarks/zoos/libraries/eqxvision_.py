"""eqxvision (Equinox): a model of each of its files, beside torchvision's; its ViT follows timm's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ..pair import CLASSES, TANH, Pair, images, source

STAGES = [1, 1, 1, 1]
NARROW = 16
"""Of the hidden layers of a classifier, which have 4096 in AlexNet and VGG."""
VGG = [4, "M", 4, "M", 512]
SWIN: Mapping[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": [4, 4],
}
VIT: Mapping[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 2,
    "num_classes": CLASSES,
}
DENSE: Mapping[str, Any] = {"growth_rate": 4, "block_config": (2, 1, 1, 1), "num_init_features": 8}
MOBILE = ((8, 3, 8, 8, True, "RE", 2, 1, 1.0), (8, 5, 16, 8, True, "HS", 1, 1, 1.0))
EFFICIENT = ((1, 3, 1, 8, 8, 1, 1.0, 1.0), (6, 5, 2, 8, 16, 2, 1.0, 1.0))
REGNET = (STAGES, [8, 16, 16, 16], [4, 4, 4, 4], [1.0] * 4, [2] * 4, 0.25)
SHUFFLE = ([2, 1, 1], [8, 16, 16, 16, 32])
CONVNEXT = ((8, 16, 1), (16, None, 2))


def torchvision_models() -> Any:
    from benchmarks.ports.vision import torchvision

    torchvision()
    import torchvision.models.segmentation  # type: ignore[import-untyped]

    return torchvision.models


def eqxvision(file: str) -> Any:
    """The module of a file, as today's Equinox imports it."""
    from .. import shims

    shims.equinox_experimental()
    return source("eqxvision", f"eqxvision.models.{file}")


def in_evaluation(net: Any) -> Any:
    """A function and its params."""
    import equinox as eqx
    import jax

    key = jax.random.key(0)
    return (lambda net, x: jax.vmap(functools.partial(net, key=key))(x)), eqx.nn.inference_mode(net)


def alexnet_torch() -> Any:
    import torch

    net = torchvision_models().AlexNet(num_classes=CLASSES)
    net.classifier[1] = torch.nn.Linear(256 * 6 * 6, NARROW)
    net.classifier[4] = torch.nn.Linear(NARROW, NARROW)
    net.classifier[6] = torch.nn.Linear(NARROW, CLASSES)
    return net


def narrow(net: Any, *places: int) -> Any:
    """A classifier of `NARROW` features, by the places of its three layers."""
    import equinox as eqx
    import jax

    layers = [net.classifier.layers[i] for i in places]
    sizes = [layers[0].in_features, NARROW, NARROW, CLASSES]
    key = jax.random.key(0)
    new = [eqx.nn.Linear(n, m, key=key) for n, m in itertools.pairwise(sizes)]
    return eqx.tree_at(lambda net: [net.classifier.layers[i] for i in places], net, new)


def vgg_torch() -> Any:
    import torch

    vgg = torchvision_models().vgg
    net = vgg.VGG(vgg.make_layers(VGG, batch_norm=True), num_classes=CLASSES, init_weights=False)
    net.classifier[0] = torch.nn.Linear(512 * 7 * 7, NARROW)
    net.classifier[3] = torch.nn.Linear(NARROW, NARROW)
    net.classifier[6] = torch.nn.Linear(NARROW, CLASSES)
    return net


def vgg_jax() -> Any:
    module = eqxvision("classification.vgg")
    return in_evaluation(narrow(module.VGG(cfg=VGG, num_classes=CLASSES, batch_norm=True), 0, 2, 5))


def convnext_torch() -> Any:
    module = torchvision_models().convnext
    return module.ConvNeXt([module.CNBlockConfig(*each) for each in CONVNEXT], num_classes=CLASSES)


def convnext_jax() -> Any:
    import jax

    module = eqxvision("classification.convnext")
    settings = [module._CNBlockConfig(*each) for each in CONVNEXT]
    net = module.ConvNeXt(settings, num_classes=CLASSES, key=jax.random.key(0))
    return in_evaluation(net)


def simple(file: str, name: str, *args: Any, torch: str = "", **settings: Any) -> tuple[Any, Any]:
    """Both makers of a model whose class has the same arguments in both libraries."""

    def there() -> Any:
        module = getattr(torchvision_models(), torch or file)
        return getattr(module, name)(*made(module, args), num_classes=CLASSES, **settings)

    def here() -> Any:
        import jax

        module = eqxvision(f"classification.{file}")
        net = getattr(module, name)(
            *made(module, args), num_classes=CLASSES, key=jax.random.key(0), **settings
        )
        return in_evaluation(net)

    return there, here


def made(module: Any, args: tuple[Any, ...]) -> list[Any]:
    """Arguments that are functions are called with the module."""
    return [each(module) if callable(each) else each for each in args]


def configs(name: str, rows: tuple[Any, ...]) -> Callable[[Any], list[Any]]:
    """Settings of blocks; eqxvision's class has an underscore."""
    return lambda module: [
        (getattr(module, name, None) or getattr(module, f"_{name}"))(*each) for each in rows
    ]


def basic(module: Any) -> Any:
    return getattr(module, "BasicBlock", None) or module._ResNetBasicBlock


def mobilenetv3_norms(module: Any) -> Any:
    return configs("InvertedResidualConfig", MOBILE)(module)


def vit_torch() -> Any:
    from timm.models.vision_transformer import VisionTransformer  # type: ignore[import-not-found]

    return VisionTransformer(**VIT)


def vit_jax() -> Any:
    import jax

    module = eqxvision("classification.vit")
    net = module.VisionTransformer(**VIT, key=jax.random.key(0))
    return in_evaluation(net)


def fcn_torch(head: str, module: str, model: str) -> Any:
    models = torchvision_models()
    backbone = models.resnet.ResNet(models.resnet.BasicBlock, STAGES)
    features = models._utils.IntermediateLayerGetter(backbone, {"layer4": "out"})
    library = getattr(models.segmentation, module)
    return getattr(library, model)(features, getattr(library, head)(512, CLASSES))


def fcn_jax(file: str) -> Any:
    import jax

    resnet = eqxvision("classification.resnet")
    backbone = resnet.ResNet(resnet._ResNetBasicBlock, STAGES, key=jax.random.key(0))
    function, net = in_evaluation(
        getattr(eqxvision(f"segmentation.{file}"), file)(
            CLASSES,
            backbone=backbone,
            intermediate_layers=lambda net: [net.layer4],
            classifier_in_channels=512,
            aux_in_channels=None,
        )
    )
    return (lambda net, x: function(net, x)[1]), net


CLASSIFICATION: Mapping[str, tuple[Any, Any, int]] = {
    "alexnet": (
        alexnet_torch,
        lambda: in_evaluation(
            narrow(eqxvision("classification.alexnet").AlexNet(num_classes=CLASSES), 1, 4, 6)
        ),
        224,
    ),
    "convnext": (convnext_torch, convnext_jax, 32),
    "densenet": (*simple("densenet", "DenseNet", **DENSE), 32),
    "efficientnet": (
        *simple("efficientnet", "EfficientNet", configs("MBConvConfig", EFFICIENT), 0.0),
        32,
    ),
    "googlenet": (
        lambda: torchvision_models().GoogLeNet(num_classes=CLASSES, aux_logits=False, init_weights=False),
        lambda: in_evaluation(
            eqxvision("classification.googlenet").GoogLeNet(num_classes=CLASSES, aux_logits=False)
        ),
        32,
    ),
    "mobilenetv2": (
        *simple("mobilenetv2", "MobileNetV2", inverted_residual_setting=[[1, 8, 1, 1], [6, 16, 2, 2]]),
        32,
    ),
    "mobilenetv3": (
        *simple("mobilenetv3", "MobileNetV3", mobilenetv3_norms, 32),
        32,
    ),
    "regnet": (*simple("regnet", "RegNet", lambda module: module.BlockParams(*REGNET), stem_width=8), 32),
    "resnet": (*simple("resnet", "ResNet", basic, STAGES), 32),
    "shufflenetv2": (*simple("shufflenetv2", "ShuffleNetV2", *SHUFFLE), 32),
    "squeezenet": (
        lambda: torchvision_models().SqueezeNet("1_1", num_classes=CLASSES),
        lambda: in_evaluation(eqxvision("classification.squeezenet").SqueezeNet("1_1", num_classes=CLASSES)),
        32,
    ),
    "swin": (*simple("swin", "SwinTransformer", torch="swin_transformer", **SWIN), 32),
    "vgg": (vgg_torch, vgg_jax, 28),
    "vit": (vit_torch, vit_jax, 16),
}
NORMS: Mapping[str, Any] = {
    "cure": {"approximate": "tanh", "eps": 1e-5},
    "cause": "gelu|epsilon",
    "why": "`jax.nn.gelu` is tanh's form of GELU by default, and Equinox's LayerNorm has an epsilon of "
    "1e-5; torch's models have the exact form, and 1e-6.",
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "convnext": {
        "cure": {"approximate": "tanh", "eps": 1e-5, "below": ".block."},
        "cause": "gelu|epsilon",
        "why": "`jax.nn.gelu` is tanh's form of GELU by default, and the norms of blocks have Equinox's "
        "epsilon of 1e-5; torchvision has the exact form, and 1e-6.",
    },
    "swin": TANH,
    "vgg": {
        "cure": {"without": ("classifier.1",)},
        "cause": "relu",
        "why": "`vgg.py` has no ReLU behind the first layer of its classifier, and torchvision has.",
    },
    "vit": NORMS,
}
SEGMENTATION = {
    "deeplabv3": ("DeepLabHead", "DeepLabV3"),
    "fcn": ("FCNHead", "FCN"),
}
PAIRS = (
    *(
        Pair(
            f"eqxvision/models/classification/{file}.py",
            there,
            here,
            images(size),
            **FIELDS.get(file, {}),
        )
        for file, (there, here, size) in CLASSIFICATION.items()
    ),
    *(
        Pair(
            f"eqxvision/models/segmentation/{file}.py",
            functools.partial(fcn_torch, head, file, model),
            functools.partial(fcn_jax, file),
            images(),
        )
        for file, (head, model) in SEGMENTATION.items()
    ),
)
