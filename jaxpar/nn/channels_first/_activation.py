"""torch's activations as modules, built from one table; editors read `_activation.pyi`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..._arguments import Extended
from .. import functional as F
from .._activation import ActivationLayer, InPlaceActivation
from .functional import softplus


def _softmax2d(x: jax.Array) -> jax.Array:
    if x.ndim not in (3, 4):
        raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {x.ndim}D instead")
    return jax.nn.softmax(x, -3)


# {name: (description, function, {argument: default})}; a required argument has its type for a default.
_TABLE: dict[str, tuple[str, Callable[..., jax.Array], dict[str, Any]]] = {
    "ReLU": ("Max(x, 0)", jax.nn.relu, {}),
    "ReLU6": ("Min(max(x, 0), 6)", lambda x: jnp.minimum(jax.nn.relu(x), 6), {}),
    "LeakyReLU": ("x, or negative_slope x below 0", F.leaky_relu, {"negative_slope": 0.01}),
    "ELU": ("x, or alpha (e^x - 1) below 0", jax.nn.elu, {"alpha": 1.0}),
    "CELU": ("x, or alpha (e^(x / alpha) - 1) below 0", jax.nn.celu, {"alpha": 1.0}),
    "SELU": ("ELU, scaled so that it keeps mean 0 and variance 1", jax.nn.selu, {}),
    "GELU": ("x Phi(x), or an approximation by tanh", F.gelu, {"approximate": "none"}),
    "SiLU": ("x sigmoid(x)", jax.nn.silu, {}),
    "Mish": ("x tanh(softplus(x))", jax.nn.mish, {}),
    "Sigmoid": ("1 / (1 + e^-x)", jax.nn.sigmoid, {}),
    "LogSigmoid": ("Log of the sigmoid", jax.nn.log_sigmoid, {}),
    "Tanh": ("Tanh(x)", jnp.tanh, {}),
    "Hardtanh": ("x clipped to [min_val, max_val]", F.hardtanh, {"min_val": -1.0, "max_val": 1.0}),
    "Hardsigmoid": ("Min(max(x + 3, 0), 6) / 6", jax.nn.hard_sigmoid, {}),
    "Hardswish": ("x min(max(x + 3, 0), 6) / 6", jax.nn.hard_swish, {}),
    "Softsign": ("x / (1 + |x|)", jax.nn.soft_sign, {}),
    "Softplus": (
        "Log(1 + e^(beta x)) / beta, or x above threshold / beta",
        softplus,
        {"beta": 1.0, "threshold": 20.0},
    ),
    "Softshrink": ("Shrink x towards 0 by lambd", F.softshrink, {"lambd": 0.5}),
    "Hardshrink": ("x, or 0 where |x| <= lambd", F.hardshrink, {"lambd": 0.5}),
    "Tanhshrink": ("x - tanh(x)", lambda x: x - jnp.tanh(x), {}),
    "Threshold": ("x, or value where x <= threshold", F.threshold, {"threshold": float, "value": float}),
    "Softmax": ("e^x, divided by its sum along dim", jax.nn.softmax, {"dim": -1}),
    "LogSoftmax": ("The logarithm of the softmax along dim", jax.nn.log_softmax, {"dim": -1}),
    "Softmin": ("e^-x, divided by its sum along dim", lambda x, dim: jax.nn.softmax(-x, dim), {"dim": -1}),
    "Softmax2d": ("Softmax over the channels of [N, C, H, W] or [C, H, W]", _softmax2d, {}),
    "GLU": ("The first half along dim times the sigmoid of the second", jax.nn.glu, {"dim": -1}),
}

_EXTENDED = {"min_val", "max_val", "threshold", "value"}
"""The arguments that may be infinite."""

_INPLACE = (
    *("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "SiLU", "Mish"),
    *("Hardtanh", "Hardsigmoid", "Hardswish", "Threshold"),
)
"""Activations that have `inplace` in torch; all ignore it."""


def _build(name: str, text: str, function: Callable[..., jax.Array], arguments: dict[str, Any]) -> type:
    def __call__(self: Any, x: jax.Array) -> jax.Array:
        return function(x, *(getattr(self, argument) for argument in arguments))

    fields: list[Any] = []
    for argument, default in arguments.items():
        is_required = isinstance(default, type)
        kind = Extended if argument in _EXTENDED else default if is_required else type(default)
        fields.append((argument, kind) if is_required else (argument, kind, default))
    base = InPlaceActivation if name in _INPLACE else ActivationLayer
    if name in _INPLACE:
        fields.append(("inplace", bool, False))
    doc = f"{text}. torch counterpart: `torch.nn.{name}`."
    namespace = {"__call__": __call__, "__doc__": doc, "__module__": __name__}
    return dataclasses.make_dataclass(name, fields, bases=(base,), namespace=namespace, eq=False, repr=False)


# Module globals, because pickle finds a class by its module and name.
for _name, _row in _TABLE.items():
    globals()[_name] = _build(_name, *_row)
