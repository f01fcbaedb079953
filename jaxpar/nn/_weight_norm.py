"""WeightNorm and SpectralNorm: wrappers that call a copy of a layer with a recomputed kernel.

Flax's WeightNorm starts with scale 1 regardless of the kernel; its SpectralNorm has one vector, not two.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._arguments import NonNegative
from . import functional
from ._conv import ConvTranspose
from ._layer import Layer

FIRST_ITERATIONS = 15
"""Number of power iterations that torch runs at construction."""


@dataclasses.dataclass(eq=False, repr=False)
class WeightNorm(Layer):
    """A layer whose kernel has its length and its direction as separate parameters.

    Args:
      layer: any module with a parameter called `name`, which becomes the direction. Its call must not depend
        on the identity of the module it is called on.
      name: the parameter's name.
      dim: the kernel's axis along which each part has its own length; None for one length. The default is the
        output axis of Flax's Linear and Conv, which is torch's axis 0.

    Parameters: `layer`'s, and `scale` [O], initially the kernel's norms; [] for dim=None.

    Raises: ValueError: at construction, if there is no such parameter. IndexError: if it has no such axis.

    torch counterpart: `torch.nn.utils.parametrizations.weight_norm`: `original0` is `scale`, `original1` is
    `layer.kernel`.
    """

    layer: nnx.Module
    name: str = "kernel"
    dim: int | None = -1

    def __post_init__(self) -> None:
        kernel = _parameter("WeightNorm", self.layer, self.name, self.dim)
        others = tuple(a for a in range(kernel.ndim) if self.dim is None or a != self.dim % kernel.ndim)
        self.scale = nnx.Param(jnp.sqrt(jnp.square(kernel).sum(others)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = functional.weight_norm(getattr(self.layer, self.name)[...], self.scale[...], self.dim)
        return _with_parameter(self.layer, self.name, kernel)(*args, **kwargs)


@dataclasses.dataclass(eq=False, repr=False)
class SpectralNorm(Layer):
    """A layer whose kernel is divided by its largest singular value.

    Args:
      layer: any module with a parameter called `name`.
      name: the parameter's name.
      n_power_iterations: how often each call in training improves the singular vectors.
      eps: a lower bound of the norms they are divided by.
      dim: the kernel's axis of outputs. The default is torch's choice: -2 for a ConvTranspose, where torch
        takes the inputs, and -1 for any other layer.
      first: the vector that an iteration improves first: "u", or "v" as in the older
        `torch.nn.utils.spectral_norm`.
      rngs: draws the initial vectors from N(0, 1); they are improved 15 times with `first="u"`.

    Statistics: `u` [O] and `v`, of the kernel's shape without `dim`; a kernel with one axis has none and is
    divided by its norm. `use_running_average` is False in training and True after `eval()`, where they are
    not updated.

    Raises: ValueError: at construction, if there is no such parameter, or n_power_iterations is below 1.
    IndexError: if it has no such axis.

    torch counterpart: `torch.nn.utils.parametrizations.spectral_norm`: `original` is `layer.kernel`, `_u` is
    `u`, `_v` is `v` in one row, in the order of torch's weight; and `torch.nn.utils.spectral_norm`, with
    `weight_orig`, `weight_u` and `weight_v`.
    """

    layer: nnx.Module
    name: str = "kernel"
    n_power_iterations: int = 1
    eps: NonNegative = 1e-12
    dim: int | None = None
    _: dataclasses.KW_ONLY
    first: str = "u"
    rngs: dataclasses.InitVar[nnx.Rngs]

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        if self.first not in ("u", "v"):
            raise ValueError(f"SpectralNorm: first={self.first!r}; it must be 'u' or 'v'")
        if self.dim is None:
            self.dim = -2 if isinstance(self.layer, ConvTranspose) else -1
        kernel = _parameter("SpectralNorm", self.layer, self.name, self.dim)
        if self.n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={self.n_power_iterations}"
            )
        self.u, self.v = nnx.data(None), nnx.data(None)
        if kernel.ndim > 1:
            matrix = jnp.moveaxis(kernel, self.dim, 0)
            u, v = (
                _unit(jax.random.normal(rngs.params(), shape, kernel.dtype), self.eps)
                for shape in (matrix.shape[:1], matrix.shape[1:])
            )
            if self.first == "u":
                _, u, v = functional.spectral_norm(kernel, u, v, FIRST_ITERATIONS, self.eps, self.dim)
            self.u, self.v = nnx.BatchStat(u), nnx.BatchStat(v)
        self.use_running_average = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = getattr(self.layer, self.name)[...]
        if self.u is None:
            kernel = _unit(kernel, self.eps)
        else:
            assert self.dim is not None  # since the constructor
            training = not self.use_running_average
            kernel, u, v = functional.spectral_norm(
                kernel,
                self.u[...],
                self.v[...],
                self.n_power_iterations,
                self.eps,
                self.dim,
                training,
                self.first,
            )
            if training:
                self.u.set_value(u)
                self.v.set_value(v)
        return _with_parameter(self.layer, self.name, kernel)(*args, **kwargs)


def _parameter(wrapper: str, layer: nnx.Module, name: str, dim: int | None) -> jax.Array:
    variable = getattr(layer, name, None)
    if not isinstance(variable, nnx.Param):
        raise ValueError(f"{wrapper}: {type(layer).__name__} does not have a parameter with name '{name}'.")
    kernel = variable[...]
    if dim is not None and not -kernel.ndim <= dim < kernel.ndim:
        raise IndexError(
            f"{wrapper}: Dimension out of range (expected to be in range of [{-kernel.ndim}, "
            f"{kernel.ndim - 1}], but got {dim})"
        )
    return kernel


def _unit(x: jax.Array, eps: NonNegative) -> jax.Array:
    return functional.normalize(x.reshape(-1), dim=0, eps=eps).reshape(x.shape)


def _with_parameter(layer: nnx.Module, name: str, kernel: jax.Array) -> nnx.Module:
    # A shallow copy shares all other variables: statistics that the layer's call updates are the original's.
    # A shallow copy, so statistics that the layer's call updates are the original's.
    other = copy.copy(layer)
    # Not setattr: Flax refuses it for a module of an outer trace, and `layer` may be one.
    vars(other)[name] = nnx.Param(kernel)
    return other
