"""Bilinear: a linear layer of two inputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from . import functional


class Bilinear(nnx.Module):
    """x1 kernel x2 + bias: [..., I] and [..., J] to [..., O].

    Args:
      in1_features, in2_features, out_features: I, J and O.
      bias: whether there is a bias.
      dtype: of the output; the inputs' and parameters' common type if left out.
      param_dtype: of the parameters.
      rngs: kernel and bias begin as U(-1/sqrt(I), 1/sqrt(I)).

    Parameters: `kernel` [I, J, O], `bias` [O].

    Raises:
      ValueError: when it is made, with in1_features below 1.

    torch counterpart: `torch.nn.Bilinear`, whose `weight` is [O, I, J]. The function is
    `functional.bilinear`.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got (in1_features={in1_features})")
        bound = in1_features**-0.5

        def uniform(*shape: int) -> nnx.Param:
            return nnx.Param(jax.random.uniform(rngs.params(), shape, param_dtype, -bound, bound))

        self.kernel = uniform(in1_features, in2_features, out_features)
        self.bias = uniform(out_features) if bias else nnx.data(None)
        self.dtype = dtype

    def __call__(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        bias = None if self.bias is None else self.bias[...]
        x1, x2, kernel, bias = dtypes.promote_dtype((x1, x2, self.kernel[...], bias), dtype=self.dtype)
        return functional.bilinear(x1, x2, kernel, bias)
