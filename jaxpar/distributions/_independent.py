"""Independent: the last axes of a batch as one event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .._arguments import Count
from .._typing import Array, Shape
from ._distribution import Distribution


class Independent(Distribution):
    """A distribution whose last batch axes are one event, over which densities and entropies are summed.

    Args:
      base_distribution: the distribution of the single numbers.
      reinterpreted_batch_ndims: how many of its batch axes become axes of the event.
      validate_args: kept for torch's sake: the base checks its own parameters and values.

    Raises: ValueError: as torch, for more axes than the batch has.

    >>> import jax.numpy as jnp
    >>> from jaxpar.distributions import Independent, Normal
    >>> p = Independent(Normal(jnp.zeros((2, 3)), 1.0), 1)
    >>> p.batch_shape, p.event_shape, p.log_prob(jnp.ones((2, 3))).shape
    ((2,), (3,), (2,))

    torch counterpart: `torch.distributions.Independent`.
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: Count,
        validate_args: bool | None = None,
    ):
        if reinterpreted_batch_ndims > len(base_distribution.batch_shape):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {len(base_distribution.batch_shape)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        super().__init__({}, validate_args)

    def _flatten(self) -> tuple[tuple, tuple]:
        return (self.base_dist,), (self.reinterpreted_batch_ndims, self._validate_args)

    @classmethod
    def _unflatten(cls, aux: tuple, children: Sequence[Any]) -> Independent:
        new = object.__new__(cls)
        (new.base_dist,), (new.reinterpreted_batch_ndims, new._validate_args) = children, aux
        new._parameters = {}
        return new

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def batch_shape(self) -> Shape:
        """The axes of the base's batch that remain."""
        shape = self.base_dist.batch_shape
        return shape[: len(shape) - self.reinterpreted_batch_ndims]

    @property
    def event_shape(self) -> Shape:
        """The shape of one draw of one distribution."""
        return (*self.base_dist.batch_shape, *self.base_dist.event_shape)[len(self.batch_shape) :]

    @property
    def mean(self) -> jax.Array:
        return self.base_dist.mean  # type: ignore[attr-defined]

    @property
    def mode(self) -> jax.Array:
        return self.base_dist.mode  # type: ignore[attr-defined]

    @property
    def variance(self) -> jax.Array:
        return self.base_dist.variance

    def log_prob(self, value: Array) -> jax.Array:
        """Return the logarithm of the density at each event."""
        return self.summed(self.base_dist.log_prob(value))  # type: ignore[attr-defined]

    def entropy(self) -> jax.Array:
        """Return the entropy of each distribution of the batch."""
        return self.summed(self.base_dist.entropy())  # type: ignore[attr-defined]

    def summed(self, x: jax.Array) -> jax.Array:
        """Sum the axes of an event."""
        return x.sum(range(x.ndim - self.reinterpreted_batch_ndims, x.ndim))

    def expand(self, batch_shape: Sequence[int]) -> Independent:
        """Return the distribution with its parameters broadcast to a batch shape."""
        inner = self.base_dist.batch_shape[len(self.batch_shape) :]
        return Independent(self.base_dist.expand((*batch_shape, *inner)), self.reinterpreted_batch_ndims)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Any = None, key: Any = None
    ) -> jax.Array:
        """Draw as the base does: an array of shape `sample_shape + batch_shape + event_shape`."""
        return self.base_dist.sample(sample_shape, generator=generator, key=key)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Any = None, key: Any = None
    ) -> jax.Array:
        """Draw as `sample`, but with the gradient."""
        return self.base_dist.rsample(sample_shape, generator=generator, key=key)  # type: ignore[attr-defined]
