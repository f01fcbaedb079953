"""LayerNorm and RMSNorm over any number of last axes, with torch's epsilon, and LocalResponseNorm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import NonNegative, Size
from ._checks import check_size, checked_shape
from ._layer import FunctionLayer, Layer, arrays, cast, constant
from .functional import layer_norm, local_response_norm, rms_norm


class LayerNorm(Layer):
    """Normalise [..., *normalized_shape] over its last axes.

    Args:
      normalized_shape: the lengths of the last axes; an int for one axis.
      elementwise_affine: whether there are `scale` and `bias`, both [*normalized_shape].
      eps, bias, dtype, param_dtype, rngs: as in `BatchNorm`.

    Raises: RuntimeError: at construction, for no axis; when called, for a different shape.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.LayerNorm(4)(jnp.ones((3, 4))).shape
    (3, 4)

    torch counterpart: `torch.nn.LayerNorm`; `weight` is `scale`. The axes are the input's own: a norm over
    (C, H, W) in torch is one over (H, W, C) here, and its weights are transposed accordingly. Source:
    torch/nn/modules/normalization.py.
    """

    def __init__(
        self,
        normalized_shape: Size | Sequence[Size],
        eps: NonNegative = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        shape = checked_shape(normalized_shape)
        self.scale = constant(elementwise_affine, 1, shape, param_dtype)
        self.bias = constant(elementwise_affine and bias, 0, shape, param_dtype)
        self.normalized_shape = shape
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias = arrays(self.scale, self.bias)
        return cast(layer_norm(x, self.normalized_shape, scale, bias, self.eps), self.dtype)


class RMSNorm(Layer):
    """Divide each row by the root of the mean of its squares over its last axes, as `LayerNorm`.

    Args:
      normalized_shape: as in `LayerNorm`.
      eps: added to the mean under the root; if None, the machine epsilon, of float64 for float64 inputs and
        of float32 for all others.
      elementwise_affine: whether there is `scale`, [*normalized_shape].
      dtype, param_dtype, rngs: as in `BatchNorm`.

    >>> import jax.numpy as jnp
    >>> from jaxpar import nn
    >>> nn.RMSNorm(4)(jnp.ones((3, 4))).shape
    (3, 4)

    torch counterpart: `torch.nn.RMSNorm`; `weight` is `scale`. Source: torch/nn/modules/normalization.py.
    """

    def __init__(
        self,
        normalized_shape: Size | Sequence[Size],
        eps: NonNegative | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        shape = checked_shape(normalized_shape)
        self.scale = constant(elementwise_affine, 1, shape, param_dtype)
        self.normalized_shape = shape
        self.eps = eps
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        (scale,) = arrays(self.scale)
        return cast(rms_norm(x, self.normalized_shape, scale, self.eps), self.dtype)


@dataclasses.dataclass(eq=False, repr=False)
class LocalResponseNorm(FunctionLayer):
    """Divide each channel of [N, ..., C] by a power of its neighbours' mean square.

    Args:
      size: of the neighbourhood, in channels.
      alpha, beta, k: x / (k + alpha * mean of squares) ** beta.

    Raises: RuntimeError: at construction, for size < 1. ValueError: fewer than three axes.

    torch counterpart: `torch.nn.LocalResponseNorm`, channels last. Source: torch/nn/modules/normalization.py.
    """

    _function = staticmethod(local_response_norm)
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __post_init__(self) -> None:
        check_size(self.size)
