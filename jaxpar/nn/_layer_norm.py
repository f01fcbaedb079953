"""LayerNorm and RMSNorm over any number of last axes.

Flax's NNX layers take one axis; their epsilon is 1e-6 (torch: 1e-5, and for RMSNorm the distance from
1 to the next number), and their default variance is E[x^2] - E[x]^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ._variable import filled, values
from .functional import layer_norm, rms_norm
from .functional._layer_norm import shape_of


class LayerNorm(nnx.Module):
    """Normalises each row over its last axes.

    Args:
      normalized_shape: the lengths of the axes, the last ones; an int for one axis.
      eps: added to the variance under the root.
      elementwise_affine: whether there are `scale` and `bias`, both [*normalized_shape].
      bias: whether there is a `bias` where there is a `scale`.
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of the parameters.
      rngs: unused, for Flax's habit of passing it.

    Input and output: [..., *normalized_shape].

    Raises:
      RuntimeError: when it is made, with no axis; when it is called, with another shape.

    torch counterpart: `torch.nn.LayerNorm`; `weight` is `scale`. The axes are those of the input as it
    is: what normalises (C, H, W) in torch normalises (H, W, C) here, and its weights move with it.
    Source: torch/nn/modules/normalization.py.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        shape = shape_of(normalized_shape)
        self.scale = filled(elementwise_affine, 1, shape, param_dtype)
        self.bias = filled(elementwise_affine and bias, 0, shape, param_dtype)
        self.normalized_shape = shape
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias = values(self.scale, self.bias)
        y = layer_norm(x, self.normalized_shape, scale, bias, self.eps)
        return y if self.dtype is None else y.astype(self.dtype)


class RMSNorm(nnx.Module):
    """Divides each row by the root of the mean of its squares over its last axes.

    Args:
      normalized_shape: the lengths of the axes, the last ones; an int for one axis.
      eps: added to the mean under the root; None for the distance from 1 to the next number, of
        float64 for float64 inputs and of float32 for all others.
      elementwise_affine: whether there is `scale`, [*normalized_shape].
      dtype: of the output; the input's if left out, as in torch.
      param_dtype: of the parameter.
      rngs: unused, for Flax's habit of passing it.

    Input and output: [..., *normalized_shape].

    Raises:
      RuntimeError: when it is made, with no axis; when it is called, with another shape.

    torch counterpart: `torch.nn.RMSNorm`; `weight` is `scale`. Source:
    torch/nn/modules/normalization.py.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        shape = shape_of(normalized_shape)
        self.scale = filled(elementwise_affine, 1, shape, param_dtype)
        self.normalized_shape = shape
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        (scale,) = values(self.scale)
        y = rms_norm(x, self.normalized_shape, scale, self.eps)
        return y if self.dtype is None else y.astype(self.dtype)
