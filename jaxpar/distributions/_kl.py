"""The Kullback-Leibler divergence of two distributions of one class."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._discrete import Bernoulli, Categorical
from ._distribution import Distribution
from ._independent import Independent
from ._normal import Normal


def kl_divergence(p: Distribution, q: Distribution) -> jax.Array:
    """Return KL(p || q) of each pair of the batch.

    Raises: NotImplementedError: as torch, for two that are not of one class.

    >>> from jaxpar.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item()
    0.5

    torch counterpart: `torch.distributions.kl_divergence`.
    """
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = (p.scale / q.scale) ** 2
        return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - jnp.log(ratio))
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return _unless_zero(p.probs, q.probs, p.probs * (p.logits - q.logits)).sum(-1)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        of_one = p.probs * (_softplus(-q.logits) - _softplus(-p.logits))
        of_zero = (1 - p.probs) * (_softplus(q.logits) - _softplus(p.logits))
        return _unless_zero(p.probs, q.probs, of_one) + _unless_zero(1 - p.probs, 1 - q.probs, of_zero)
    axes = [getattr(x, "reinterpreted_batch_ndims", None) for x in (p, q)]
    if isinstance(p, Independent) and isinstance(q, Independent) and axes[0] == axes[1]:
        return p.summed(kl_divergence(p.base_dist, q.base_dist))
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )


def _unless_zero(p: jax.Array, q: jax.Array, term: jax.Array) -> jax.Array:
    return jnp.where(p == 0, 0, jnp.where(q == 0, jnp.inf, term))


def _softplus(x: jax.Array) -> jax.Array:
    return jnp.where(x > 20, x, jnp.log1p(jnp.exp(jnp.minimum(x, 20))))  # torch's is linear from 20 on
