"""Activations, on [4, 6], far from their kinks. The defaults agree, but for GELU: Flax's is tanh's."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from torch import nn

from ..case import Apply, Case, normal

FUNCTIONS = {
    "ReLU": (nn.ReLU, nnx.relu),
    "ReLU6": (nn.ReLU6, nnx.relu6),
    "LeakyReLU": (nn.LeakyReLU, nnx.leaky_relu),
    "LeakyReLU, slope 0.2": (
        lambda: nn.LeakyReLU(0.2),
        functools.partial(nnx.leaky_relu, negative_slope=0.2),
    ),
    "ELU": (nn.ELU, nnx.elu),
    "SELU": (nn.SELU, nnx.selu),
    "CELU": (nn.CELU, nnx.celu),
    "GELU": (nn.GELU, functools.partial(nnx.gelu, approximate=False)),
    "GELU, tanh": (lambda: nn.GELU("tanh"), nnx.gelu),
    "SiLU": (nn.SiLU, nnx.silu),
    "Mish": (nn.Mish, jax.nn.mish),
    "Sigmoid": (nn.Sigmoid, nnx.sigmoid),
    "LogSigmoid": (nn.LogSigmoid, nnx.log_sigmoid),
    "Tanh": (nn.Tanh, nnx.tanh),
    "Hardtanh": (nn.Hardtanh, nnx.hard_tanh),
    "Tanhshrink": (nn.Tanhshrink, lambda x: x - jnp.tanh(x)),
    "Hardswish": (nn.Hardswish, nnx.hard_silu),
    "Softplus": (nn.Softplus, nnx.softplus),
    "Softsign": (nn.Softsign, nnx.soft_sign),
    "Softshrink": (nn.Softshrink, lambda x: jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.5, 0)),
    "Hardshrink": (nn.Hardshrink, lambda x: jnp.where(jnp.abs(x) > 0.5, x, 0)),
    "Threshold": (lambda: nn.Threshold(0.1, 20.0), lambda x: jnp.where(x > 0.1, x, 20.0)),
    "Softmax": (lambda: nn.Softmax(-1), nnx.softmax),
    "Softmin": (lambda: nn.Softmin(-1), lambda x: nnx.softmax(-x)),
    "Hardsigmoid": (nn.Hardsigmoid, nnx.hard_sigmoid),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), nnx.log_softmax),
    "GLU": (nn.GLU, nnx.glu),
}


def activation(name, torch, function):
    return Case(name, torch, lambda rngs: Apply(function), (normal(4, 6),))


CASES = [
    *(activation(name, *pair) for name, pair in FUNCTIONS.items()),
    Case("PReLU", nn.PReLU, lambda rngs: nnx.PReLU(0.25), (normal(4, 6),)),
]
