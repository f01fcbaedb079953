"""Bilinear: a linear layer of two inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import Size
from .._upstream import promote_dtype
from . import functional
from ._array_types import Floating
from ._layer import Layer, arrays, drawn, optional


class Bilinear(Layer):
    """x1 kernel x2 + bias: [..., I] and [..., J] to [..., O].

    Args:
      in1_features, in2_features, out_features: I, J and O.
      bias: whether there is a bias.
      dtype: of the output; the inputs' and parameters' common type if left out.
      param_dtype: of the parameters.
      rngs: draws kernel and bias from U(-1/sqrt(I), 1/sqrt(I)).

    Parameters: `kernel` [I, J, O], `bias` [O].

    Raises: ValueError: at construction, for in1_features below 1.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> nn.Bilinear(2, 3, 4, rngs=nnx.Rngs(0))(jnp.ones((5, 2)), jnp.ones((5, 3))).shape
    (5, 4)

    torch counterpart: `torch.nn.Bilinear`, whose `weight` is [O, I, J].
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: Size,
        out_features: Size,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got (in1_features={in1_features})")
        # torch takes the bound from axis 1 of its weight, [O, I, J], so the second input does not count.
        bound = in1_features**-0.5

        def uniform(*shape: int) -> nnx.Param:
            return nnx.Param(drawn(rngs.params(), shape, param_dtype, bound))

        self.kernel = uniform(in1_features, in2_features, out_features)
        self.bias = optional(bias, lambda: uniform(out_features))
        self.dtype = dtype

    def __call__(self, x1: Floating, x2: Floating) -> jax.Array:
        inputs = (x1, x2, *arrays(self.kernel, self.bias))
        x1, x2, kernel, bias = promote_dtype(inputs, dtype=self.dtype)
        return functional.bilinear(x1, x2, kernel, bias)
