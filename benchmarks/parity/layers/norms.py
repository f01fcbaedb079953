"""Norms. Flax's defaults are other ones: epsilon 1e-6 but for BatchNorm, and E[x^2] - E[x]^2 as variance."""

import jax.numpy as jnp
from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal

TORCH = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
PLANE = (4, 6, 5, 3)
WIDE = {"epsilon": 1e-5, "use_fast_variance": False}


def batch_norm(name, shape, *, training=True, **options):
    return Case(
        name,
        lambda: TORCH[len(shape)](shape[1], **options),
        lambda rngs: jaxpar.nn.BatchNorm(shape[1], **options),
        (normal(*shape, mean=1.0),),
        layout="channels_last",
        training=training,
    )


class Planes(nnx.Module):
    """LayerNorm over the last two axes; torch's weight has both."""

    def __init__(self, rngs):
        self.weight = nnx.Param(jnp.ones((5, 3)))
        self.bias = nnx.Param(jnp.zeros((5, 3)))

    def __call__(self, x):
        centred = x - x.mean((-2, -1), keepdims=True)
        variance = jnp.square(centred).mean((-2, -1), keepdims=True)
        return centred / jnp.sqrt(variance + 1e-5) * self.weight + self.bias


CASES = [
    batch_norm("BatchNorm1d, rows", (5, 6)),
    batch_norm("BatchNorm1d", (4, 6, 5)),
    batch_norm("BatchNorm2d", PLANE),
    batch_norm("BatchNorm2d, evaluation", PLANE, training=False),
    batch_norm("BatchNorm2d, momentum 0.3, eps 1e-3", PLANE, momentum=0.3, eps=1e-3),
    batch_norm("BatchNorm2d, momentum None", PLANE, momentum=None),
    batch_norm("BatchNorm2d without parameters", PLANE, affine=False),
    batch_norm("BatchNorm2d without statistics", PLANE, track_running_stats=False),
    batch_norm("BatchNorm3d", (2, 6, 3, 2, 4)),
    Case(
        "LayerNorm",
        lambda: nn.LayerNorm(6),
        lambda rngs: nnx.LayerNorm(6, **WIDE, rngs=rngs),
        (normal(4, 5, 6, mean=1.0),),
    ),
    Case(
        "LayerNorm without bias",
        lambda: nn.LayerNorm(6, bias=False),
        lambda rngs: nnx.LayerNorm(6, use_bias=False, **WIDE, rngs=rngs),
        (normal(4, 5, 6),),
    ),
    Case(
        "LayerNorm without parameters",
        lambda: nn.LayerNorm(6, elementwise_affine=False),
        lambda rngs: nnx.LayerNorm(6, use_bias=False, use_scale=False, **WIDE, rngs=rngs),
        (normal(4, 5, 6),),
    ),
    Case("LayerNorm over two axes", lambda: nn.LayerNorm((5, 3)), Planes, (normal(4, 6, 5, 3),)),
    Case(
        "GroupNorm",
        lambda: nn.GroupNorm(3, 6),
        lambda rngs: nnx.GroupNorm(6, 3, **WIDE, rngs=rngs),
        (normal(*PLANE),),
        layout="channels_last",
    ),
    Case(
        "GroupNorm, one group",
        lambda: nn.GroupNorm(1, 6),
        lambda rngs: nnx.GroupNorm(6, 1, **WIDE, rngs=rngs),
        (normal(*PLANE),),
        layout="channels_last",
    ),
    Case(
        "InstanceNorm2d",
        lambda: nn.InstanceNorm2d(6, affine=True),
        lambda rngs: nnx.InstanceNorm(6, **WIDE, rngs=rngs),
        (normal(*PLANE),),
        layout="channels_last",
    ),
    Case(
        "InstanceNorm1d without parameters",
        lambda: nn.InstanceNorm1d(6),
        lambda rngs: nnx.InstanceNorm(6, use_scale=False, use_bias=False, **WIDE, rngs=rngs),
        (normal(4, 6, 5),),
        layout="channels_last",
    ),
    Case(
        "RMSNorm",
        lambda: nn.RMSNorm(6, eps=1e-6),
        lambda rngs: nnx.RMSNorm(6, epsilon=1e-6, use_fast_variance=False, rngs=rngs),
        (normal(4, 5, 6),),
    ),
]
