"""torch's activations as modules.

They accept and ignore torch's `inplace`: JAX's arrays are immutable. They accept and ignore `rngs`, so that
code can construct any layer, activations included, from its class.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from .. import functional as F
from .._layer import Layer
from .functional import softplus


@dataclasses.dataclass(eq=False, repr=False)
class _Activation(Layer):
    _: dataclasses.KW_ONLY
    inplace: bool = False
    rngs: dataclasses.InitVar[nnx.Rngs | None] = None

    def __post_init__(self, rngs: nnx.Rngs | None) -> None:
        del rngs


@dataclasses.dataclass(eq=False, repr=False)
class ReLU(_Activation):
    """Max(x, 0). torch counterpart: `torch.nn.ReLU`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)


@dataclasses.dataclass(eq=False, repr=False)
class ReLU6(_Activation):
    """Min(max(x, 0), 6). torch counterpart: `torch.nn.ReLU6`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.minimum(jax.nn.relu(x), 6)


@dataclasses.dataclass(eq=False, repr=False)
class LeakyReLU(_Activation):
    """x, or negative_slope x below 0. torch counterpart: `torch.nn.LeakyReLU`."""

    negative_slope: float = 0.01

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.leaky_relu(x, self.negative_slope)


@dataclasses.dataclass(eq=False, repr=False)
class ELU(_Activation):
    """x, or alpha (e^x - 1) below 0. torch counterpart: `torch.nn.ELU`."""

    alpha: float = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.elu(x, self.alpha)


@dataclasses.dataclass(eq=False, repr=False)
class CELU(_Activation):
    """x, or alpha (e^(x / alpha) - 1) below 0. torch counterpart: `torch.nn.CELU`."""

    alpha: float = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.celu(x, self.alpha)


@dataclasses.dataclass(eq=False, repr=False)
class SELU(_Activation):
    """ELU, scaled so that it keeps mean 0 and variance 1. torch counterpart: `torch.nn.SELU`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.selu(x)


@dataclasses.dataclass(eq=False, repr=False)
class GELU(_Activation):
    """x Phi(x), or an approximation by tanh. torch counterpart: `torch.nn.GELU`."""

    approximate: str = "none"

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.gelu(x, self.approximate)


@dataclasses.dataclass(eq=False, repr=False)
class SiLU(_Activation):
    """x sigmoid(x). torch counterpart: `torch.nn.SiLU`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.silu(x)


@dataclasses.dataclass(eq=False, repr=False)
class Mish(_Activation):
    """x tanh(softplus(x)). torch counterpart: `torch.nn.Mish`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.mish(x)


@dataclasses.dataclass(eq=False, repr=False)
class Sigmoid(_Activation):
    """1 / (1 + e^-x). torch counterpart: `torch.nn.Sigmoid`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x)


@dataclasses.dataclass(eq=False, repr=False)
class LogSigmoid(_Activation):
    """Log of the sigmoid. torch counterpart: `torch.nn.LogSigmoid`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.log_sigmoid(x)


@dataclasses.dataclass(eq=False, repr=False)
class Tanh(_Activation):
    """Tanh(x). torch counterpart: `torch.nn.Tanh`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x)


@dataclasses.dataclass(eq=False, repr=False)
class Hardtanh(_Activation):
    """x clipped to [min_val, max_val]. torch counterpart: `torch.nn.Hardtanh`."""

    min_val: float = -1.0
    max_val: float = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.hardtanh(x, self.min_val, self.max_val)


@dataclasses.dataclass(eq=False, repr=False)
class Hardsigmoid(_Activation):
    """Min(max(x + 3, 0), 6) / 6. torch counterpart: `torch.nn.Hardsigmoid`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.hard_sigmoid(x)


@dataclasses.dataclass(eq=False, repr=False)
class Hardswish(_Activation):
    """x min(max(x + 3, 0), 6) / 6. torch counterpart: `torch.nn.Hardswish`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.hard_swish(x)


@dataclasses.dataclass(eq=False, repr=False)
class Softsign(_Activation):
    """x / (1 + |x|). torch counterpart: `torch.nn.Softsign`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.soft_sign(x)


@dataclasses.dataclass(eq=False, repr=False)
class Softplus(_Activation):
    """Log(1 + e^(beta x)) / beta, or x above threshold / beta. torch counterpart: `torch.nn.Softplus`."""

    beta: float = 1.0
    threshold: float = 20.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return softplus(x, self.beta, self.threshold)


@dataclasses.dataclass(eq=False, repr=False)
class Softshrink(_Activation):
    """Shrink x towards 0 by lambd. torch counterpart: `torch.nn.Softshrink`."""

    lambd: float = 0.5

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.softshrink(x, self.lambd)


@dataclasses.dataclass(eq=False, repr=False)
class Hardshrink(_Activation):
    """x, or 0 where |x| <= lambd. torch counterpart: `torch.nn.Hardshrink`."""

    lambd: float = 0.5

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.hardshrink(x, self.lambd)


@dataclasses.dataclass(eq=False, repr=False)
class Tanhshrink(_Activation):
    """x - tanh(x). torch counterpart: `torch.nn.Tanhshrink`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x - jnp.tanh(x)


@dataclasses.dataclass(eq=False, repr=False)
class Threshold(_Activation):
    """x, or value where x <= threshold. torch counterpart: `torch.nn.Threshold`."""

    threshold: float
    value: float

    def __call__(self, x: jax.Array) -> jax.Array:
        return F.threshold(x, self.threshold, self.value)


@dataclasses.dataclass(eq=False, repr=False)
class Softmax(_Activation):
    """e^x, divided by its sum along dim. torch counterpart: `torch.nn.Softmax`."""

    dim: int = -1

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, self.dim)


@dataclasses.dataclass(eq=False, repr=False)
class LogSoftmax(_Activation):
    """The logarithm of the softmax along dim. torch counterpart: `torch.nn.LogSoftmax`."""

    dim: int = -1

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(x, self.dim)


@dataclasses.dataclass(eq=False, repr=False)
class GLU(_Activation):
    """The first half along dim times the sigmoid of the second. torch counterpart: `torch.nn.GLU`."""

    dim: int = -1

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.glu(x, self.dim)
