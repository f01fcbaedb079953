"""PReLU with a slope for each channel, and RReLU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from . import functional
from .functional._activation import check_bounds


class PReLU(nnx.Module):
    """x where it is above 0, else x times a slope that is learned.

    Args:
      num_parameters: 1, or the number of channels C of [..., C].
      init: what the slopes begin with.
      dtype: of the output; the input's and parameter's common type if left out.
      param_dtype: of the slopes.
      rngs: unused, for Flax's habit of passing it.

    torch counterpart: `torch.nn.PReLU`; `weight` is `negative_slope`, [num_parameters]. Flax's own
    has one slope, of shape []. The function is `functional.prelu`.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        self.negative_slope = nnx.Param(jnp.full((num_parameters,), init, param_dtype))
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        x, slope = dtypes.promote_dtype((x, self.negative_slope[...]), dtype=self.dtype)
        return functional.prelu(x, slope)


class RReLU(nnx.Module):
    """x where it is above 0, else x times a slope: random in training, the mean in evaluation.

    Args:
      lower, upper: between which the slopes are.
      rngs: its stream `dropout` is forked for the slopes.

    Raises:
      ValueError: when it is made, with lower above upper.

    torch counterpart: `torch.nn.RReLU`: the same function of the slopes; the slopes themselves come
    from JAX. The function is `functional.rrelu`.
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, *, rngs: nnx.Rngs):
        check_bounds(lower, upper)
        self.lower = lower
        self.upper = upper
        self.deterministic = False
        self.rngs = rngs.dropout.fork()

    def __call__(self, x: jax.Array) -> jax.Array:
        key = None if self.deterministic else self.rngs()
        return functional.rrelu(x, self.lower, self.upper, not self.deterministic, key=key)
