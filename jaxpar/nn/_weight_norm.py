"""WeightNorm and SpectralNorm: layers around a layer whose kernel is computed anew at every call.

Flax has both names. Its WeightNorm begins with scale 1, whatever the layer's kernel is, and
overwrites the kernel at every call; its SpectralNorm has one vector where torch has two, and another
order of updates. Here the layer keeps its own kernel, and calls a copy of itself with the computed one.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from . import functional
from .functional._weight_norm import norm_except, power_iterations, unit

FIRST_ITERATIONS = 15
"""torch improves random vectors this often when the layer is made."""


class WeightNorm(nnx.Module):
    """A layer with its kernel's length and direction as parameters apart.

    Args:
      layer: any module with a parameter called `name`, which becomes the direction. A layer's call
        may not depend on the identity of the module it is called on.
      name: the parameter's name.
      dim: the kernel's axis whose parts have lengths of their own, None for one length. The default
        is the output axis of Flax's Linear and Conv, which is torch's axis 0.

    Parameters: those of `layer`, and `scale` [O], which begins as the kernel's norms; [] for dim=None.

    Raises:
      ValueError: when it is made, if there is no such parameter. IndexError: if it has no such axis.

    torch counterpart: `torch.nn.utils.parametrizations.weight_norm`: `original0` is `scale`,
    `original1` is `layer.kernel`. The function is `functional.weight_norm`.
    """

    def __init__(self, layer: nnx.Module, name: str = "kernel", dim: int | None = -1):
        kernel = _parameter("WeightNorm", layer, name, dim)
        self.scale = nnx.Param(norm_except(kernel, dim).reshape(() if dim is None else (-1,)))
        self.layer = layer
        self.name = name
        self.dim = dim

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = functional.weight_norm(getattr(self.layer, self.name)[...], self.scale[...], self.dim)
        return _with(self.layer, self.name, kernel)(*args, **kwargs)


class SpectralNorm(nnx.Module):
    """A layer whose kernel is divided by its largest singular value.

    Args:
      layer: any module with a parameter called `name`.
      name: the parameter's name.
      n_power_iterations: how often the singular vectors are improved in each call in training.
      eps: the least norm that they are divided by.
      dim: the kernel's axis of outputs; -1 in Flax's Linear and Conv. torch takes axis 1 for its
        transposed convolutions, which is -2 in jaxpar's.
      rngs: the vectors begin as normal numbers, improved 15 times.

    Statistics: `u` [O] and `v`, of the kernel's shape without `dim`; a kernel with one axis has none
    and is divided by its norm. `use_running_average` is False in training and True after `eval()`;
    then they stay.

    Raises:
      ValueError: when it is made, if there is no such parameter, or n_power_iterations is below 1.
      IndexError: if it has no such axis.

    torch counterpart: `torch.nn.utils.parametrizations.spectral_norm`: `original` is `layer.kernel`,
    `_u` is `u`, `_v` is `v` in one row, in the order of torch's weight. The function is
    `functional.spectral_norm`.
    """

    def __init__(
        self,
        layer: nnx.Module,
        name: str = "kernel",
        n_power_iterations: int = 1,
        eps: float = 1e-12,
        dim: int = -1,
        *,
        rngs: nnx.Rngs,
    ):
        kernel = _parameter("SpectralNorm", layer, name, dim)
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.u, self.v = nnx.data(None), nnx.data(None)
        if kernel.ndim > 1:
            matrix = jnp.moveaxis(kernel, dim, 0)
            u, v = (
                unit(jax.random.normal(rngs.params(), shape, kernel.dtype), eps)
                for shape in (matrix.shape[:1], matrix.shape[1:])
            )
            u, v = power_iterations(matrix, u, v, FIRST_ITERATIONS, eps)
            self.u, self.v = nnx.BatchStat(u), nnx.BatchStat(v)
        self.layer = layer
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.eps = eps
        self.dim = dim
        self.use_running_average = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = getattr(self.layer, self.name)[...]
        if self.u is None:
            kernel = unit(kernel, self.eps)
        else:
            training = not self.use_running_average
            kernel, u, v = functional.spectral_norm(
                kernel, self.u[...], self.v[...], self.n_power_iterations, self.eps, self.dim, training
            )
            if training:
                self.u.set_value(u)
                self.v.set_value(v)
        return _with(self.layer, self.name, kernel)(*args, **kwargs)


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


def _with(layer: nnx.Module, name: str, kernel: jax.Array) -> Any:
    """The layer with another kernel: every other variable is the layer's own, not a copy."""
    other = copy.copy(layer)
    vars(other)[name] = nnx.Param(kernel)  # not setattr: `layer` may belong to an outer trace
    return other
