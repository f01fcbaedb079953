"""Normal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import Extended
from .._typing import Array, Shape
from ._distribution import REAL, Distribution, broadcast


class Normal(Distribution):
    """Normal numbers of a mean and a standard deviation.

    Args:
      loc, scale: mean and standard deviation: arrays that broadcast, or numbers.
      validate_args: whether parameters and values are checked; they are if left out.

    Raises: ValueError: as torch, for a mean that is NaN, a scale that is not positive, and NaN as a value.

    >>> from jaxpar.distributions import Normal
    >>> from jaxpar.random import Generator
    >>> x = Normal(1.0, 2.0).sample((2,), generator=Generator(0))
    >>> (Normal(1.0, 2.0).cdf(Normal(1.0, 2.0).icdf(x / 8)) * 8 / x).round(6).tolist()
    [1.0, 1.0]

    torch counterpart: `torch.distributions.Normal`.
    """

    has_rsample = True
    constraints: ClassVar = {"loc": REAL, "scale": ("GreaterThan(lower_bound=0.0)", lambda x: x > 0)}

    def __init__(self, loc: Array | Extended, scale: Array | Extended, validate_args: bool | None = None):
        loc, scale = broadcast(loc, scale)
        super().__init__({"loc": loc, "scale": scale}, validate_args)

    @property
    def loc(self) -> jax.Array:
        """The means."""
        return self._parameters["loc"]

    @property
    def scale(self) -> jax.Array:
        """The standard deviations."""
        return self._parameters["scale"]

    mean = mode = loc
    stddev = scale

    @property
    def variance(self) -> jax.Array:
        return self.scale**2

    def log_prob(self, value: Array) -> jax.Array:
        """Return the logarithm of the density at each value."""
        distance = self._checked(value) - self.loc
        return -(distance**2) / (2 * self.variance) - jnp.log(self.scale) - math.log(math.sqrt(2 * math.pi))

    def entropy(self) -> jax.Array:
        """Return the entropy of each distribution of the batch."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + jnp.log(self.scale)

    def cdf(self, value: Array) -> jax.Array:
        """Return the probability of what is at most each value."""
        distance = self._checked(value) - self.loc
        return 0.5 * (1 + jax.lax.erf(distance / self.scale / math.sqrt(2)))

    def icdf(self, value: Array) -> jax.Array:
        """Return the numbers of which `value` are the probabilities, as `cdf` gives them."""
        return self.loc + self.scale * jax.lax.erf_inv(2 * jnp.asarray(value) - 1) * math.sqrt(2)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Any = None, key: Any = None
    ) -> jax.Array:
        """Draw as `sample`, but with the gradient: `loc + scale` times standard normal numbers."""
        shape = (*sample_shape, *self.batch_shape)
        if self._is_torchs("rsample", generator, key):
            noise = jnp.asarray(generator.randn(*shape, dtype=self.loc.dtype))
        else:
            noise = jax.random.normal(key, shape, self.loc.dtype)
        return self.loc + noise * self.scale

    def _torch_draw(self, shape: Shape, generator: Any) -> np.ndarray:
        return generator.randn(*shape, dtype=self.loc.dtype) * np.asarray(self.scale) + np.asarray(self.loc)

    def _jax_draw(self, shape: Shape, key: Any) -> jax.Array:
        return self.rsample(shape[: len(shape) - len(self.batch_shape)], key=key)
