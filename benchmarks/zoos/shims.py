"""What the checkouts import, and is not there: Equinox's earlier BatchNorm, TensorFlow's files."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class BatchNorm(eqx.Module):
    """Statistics are leaves beside the weights, as there is no state outside."""

    weight: jax.Array
    bias: jax.Array
    running_mean: jax.Array
    running_var: jax.Array
    eps: float = eqx.field(static=True)

    def __init__(self, input_size: int, axis_name: str = "", eps: float = 1e-5, momentum: float = 0.99):
        self.weight, self.bias = jnp.ones(input_size), jnp.zeros(input_size)
        self.running_mean, self.running_var = jnp.zeros(input_size), jnp.ones(input_size)
        self.eps = eps

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        def channel(x: jax.Array, weight: Any, bias: Any, mean: Any, var: Any) -> jax.Array:
            return (x - mean) / jnp.sqrt(var + self.eps) * weight + bias

        mean, var = map(jax.lax.stop_gradient, (self.running_mean, self.running_var))
        return jax.vmap(channel)(x, self.weight, self.bias, mean, var)


def equinox_experimental() -> None:
    """`equinox.experimental`, which eqxvision imports: BatchNorm in evaluation."""
    module = ModuleType("equinox.experimental")
    module.__dict__.update(BatchNorm=BatchNorm)
    sys.modules["equinox.experimental"] = module
    eqx.experimental = module


def tensorflow_files() -> None:
    """`tensorflow.io.gfile`, by which big_vision reads checkpoints; no model needs it."""
    for name in ("tensorflow", "tensorflow.io", "tensorflow.io.gfile", "tensorflow.errors"):
        module = sys.modules.setdefault(name, ModuleType(name))
        module.__spec__ = module.__spec__ or ModuleSpec(name, None)
    sys.modules["tensorflow.errors"].NotFoundError = FileNotFoundError  # type: ignore[attr-defined]
    for kind in ("Tensor", "Variable"):  # by which einops knows arrays of TensorFlow
        setattr(sys.modules["tensorflow"], kind, type(kind, (), {}))
    sys.modules["tensorflow"].errors = sys.modules["tensorflow.errors"]  # type: ignore[attr-defined]
