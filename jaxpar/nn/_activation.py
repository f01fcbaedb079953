"""PReLU with a slope for each channel, RReLU, and the base of activations without parameters."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._arguments import Size
from .._upstream import promote_dtype
from . import functional
from ._array_types import Floating
from ._checks import check_bounds
from ._layer import Layer


@dataclasses.dataclass(eq=False, repr=False)
class InPlaceActivation(Layer):
    """Base of channels_first's activations; it accepts `rngs` and ignores it."""

    _: dataclasses.KW_ONLY
    rngs: dataclasses.InitVar[nnx.Rngs | None] = None

    def __post_init__(self, rngs: nnx.Rngs | None) -> None:
        del rngs


@dataclasses.dataclass(eq=False, repr=False)
class ActivationLayer(InPlaceActivation):
    """Base of activations without `inplace` in torch: libraries pass it to all, by name."""

    _: dataclasses.KW_ONLY
    inplace: bool = False


class PReLU(Layer):
    """x where it is above 0, else x times a learned slope.

    Args:
      num_parameters: 1, or the number of channels C of [..., C].
      init: the initial slope.
      dtype: of the output; the input's and parameter's common type if left out.
      param_dtype: of the slopes.
      rngs: unused; accepted as by Flax's layers.

    torch counterpart: `torch.nn.PReLU`; `weight` is `negative_slope`, [num_parameters]. Flax's own has a
    single slope, of shape [].
    """

    def __init__(
        self,
        num_parameters: Size = 1,
        init: float = 0.25,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        self.negative_slope = nnx.Param(jnp.full((num_parameters,), init, param_dtype))
        self.dtype = dtype

    def __call__(self, x: Floating) -> jax.Array:
        x, slope = promote_dtype((x, self.negative_slope[...]), dtype=self.dtype)
        return functional.prelu(x, slope)


class RReLU(Layer):
    """x where it is above 0, else x times a slope: random in training, the mean in evaluation.

    Args:
      lower, upper: the bounds of the slopes.
      rngs: its stream `dropout` is forked to draw the slopes.

    Raises: ValueError: at construction, if lower is above upper.

    torch counterpart: `torch.nn.RReLU`, with slopes drawn by JAX.
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
