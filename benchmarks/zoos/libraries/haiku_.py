"""dm-haiku's nets, beside torchvision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..pair import CLASSES, ROWS, Pair, images
from .eqxvision_ import STAGES, torchvision_models
from .linen_ import LAST


def haiku_model(make: Callable[[Any], Any], *shape: int, stateful: bool = True) -> Any:
    """A function and its params, which hold the state as well."""
    import haiku as hk  # type: ignore[import-not-found]
    import jax
    import jax.numpy as jnp

    def run(x: Any, training: bool) -> Any:
        net = make(hk.nets)
        return net(x, is_training=training) if stateful else net(x)

    transformed = hk.transform_with_state(run)
    params, state = transformed.init(jax.random.key(0), jnp.zeros((1, *shape)), True)

    def function(tree: Any, x: Any) -> Any:
        return transformed.apply(tree["params"], tree["state"], None, x, False)[0]

    return function, {"params": params, "state": state}


PAIRS = (
    Pair(
        "dm-haiku/haiku/_src/nets/mlp.py",
        lambda: (torchvision_models(), __import__("torchvision").ops.MLP(6, [8, 8, 3]))[1],
        functools.partial(haiku_model, lambda nets: nets.MLP([8, 8, 3]), 6, stateful=False),
        lambda random: random.randn(ROWS, 6),
    ),
    Pair(
        "dm-haiku/haiku/_src/nets/resnet.py",
        lambda: torchvision_models().resnet.ResNet(
            torchvision_models().resnet.BasicBlock, STAGES, num_classes=CLASSES
        ),
        functools.partial(
            haiku_model,
            lambda nets: nets.ResNet(
                STAGES,
                CLASSES,
                bottleneck=False,
                channels_per_group=(64, 128, 256, 512),
                use_projection=(False, True, True, True),
            ),
            32,
            32,
            3,
        ),
        images(),
        LAST,
    ),
)
