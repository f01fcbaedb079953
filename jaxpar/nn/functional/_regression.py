"""Regression losses: absolute, squared and in between, and the likelihoods of some distributions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..._arguments import NonNegative, warn
from ._reduction import absolute, broadcast_pair, clamp_min, reduce, values


def l1_loss(
    input: jax.Array, target: ArrayLike, *, reduction: str = "mean", weight: ArrayLike | None = None
) -> jax.Array:
    """|input - target|; its gradient is 0 where they are equal.

    Args:
      input, target: one shape; broadcasting warns.
      reduction: "none", "mean" or "sum".
      weight: of input's shape; the mean is then divided by its sum.

    Raises: ValueError: a different shape of `weight`, an unknown reduction.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.l1_loss(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])))
    1.0

    torch counterpart: `torch.nn.functional.l1_loss`. Source: torch/nn/functional.py.
    """
    input, target = broadcast_pair(input, target)
    return _weighted(absolute(input - target), weight, reduction)


def mse_loss(
    input: jax.Array, target: ArrayLike, *, reduction: str = "mean", weight: ArrayLike | None = None
) -> jax.Array:
    """(input - target)^2, without optax.l2_loss's 1/2; arguments as for `l1_loss`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.mse_loss(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0])))
    2.0

    torch counterpart: `torch.nn.functional.mse_loss`. Source: torch/nn/functional.py.
    """
    input, target = broadcast_pair(input, target)
    return _weighted(jnp.square(input - target), weight, reduction)


def _weighted(loss: jax.Array, weight: ArrayLike | None, reduction: str) -> jax.Array:
    if weight is None:
        return reduce(loss, reduction)
    weight = _like(weight, loss)
    if reduction == "mean":
        return (loss * weight).sum() / weight.sum()
    return reduce(loss * weight, reduction)


def _like(weight: ArrayLike, loss: jax.Array) -> jax.Array:
    weight = jnp.asarray(weight)
    if weight.shape != loss.shape:
        raise ValueError("Weights and input must have the same size.")
    return weight


def smooth_l1_loss(
    input: jax.Array, target: ArrayLike, *, reduction: str = "mean", beta: float = 1.0
) -> jax.Array:
    """d^2 / (2 beta) where |d| < beta, |d| - beta / 2 beyond, d = input - target; beta = 0 is `l1_loss`.

    Args:
      input, target, reduction: as for `l1_loss`.
      beta: not negative.

    Raises: RuntimeError: a negative beta.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.smooth_l1_loss(jnp.array([0.0]), jnp.array([3.0])))
    2.5

    torch counterpart: `torch.nn.functional.smooth_l1_loss`. Source: aten/src/ATen/native/Loss.cpp.
    """
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    input, target = broadcast_pair(input, target)
    d = absolute(input - target)
    # With beta = 0 this is l1_loss, and the quotient below would be NaN in the gradient.
    if beta:
        d = jnp.where(d < beta, jnp.square(d) / (2 * beta), d - beta / 2)
    return reduce(d, reduction)


def huber_loss(
    input: jax.Array,
    target: ArrayLike,
    *,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: ArrayLike | None = None,
) -> jax.Array:
    """d^2 / 2 where |d| <= delta, delta (|d| - delta / 2) beyond, d = input - target.

    Args:
      input, target, reduction: as for `l1_loss`.
      delta: positive.
      weight: of input's shape; unlike in `l1_loss`, and as in torch, the mean is not divided by its sum.

    Raises: RuntimeError: a delta that is not positive. ValueError: a different shape of `weight`.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> float(F.huber_loss(jnp.array([0.0]), jnp.array([3.0])))
    2.5

    torch counterpart: `torch.nn.functional.huber_loss`. Source: torch/nn/functional.py.
    """
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    input, target = broadcast_pair(input, target)
    d = absolute(input - target)
    loss = jnp.where(d <= delta, jnp.square(d) / 2, delta * (d - delta / 2))
    return reduce(loss if weight is None else loss * _like(weight, loss), reduction)


def kl_div(
    input: jax.Array, target: ArrayLike, *, reduction: str = "mean", log_target: bool = False
) -> jax.Array:
    """target (log target - input), the terms of KL(target || exp(input)).

    Args:
      input: log-probabilities, any shape. target: probabilities, or log-probabilities with `log_target`. They
        may broadcast.
      reduction: "none", "batchmean" (the sum divided by the first axis of input, which is the mathematical
        KL), "sum", or "mean" over all elements, which warns, as in torch.

    torch counterpart: `torch.nn.functional.kl_div`. Source: aten/src/ATen/native/Loss.cpp.
    """
    if reduction == "mean":
        warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math definition."
        )
    target = values(target, "target")
    if log_target:
        loss = jnp.exp(target) * (target - input)
    else:
        loss = jax.scipy.special.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.ndim else 1)
    return reduce(loss, reduction)


def poisson_nll_loss(
    input: jax.Array,
    target: ArrayLike,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: NonNegative = 1e-8,
    reduction: str = "mean",
) -> jax.Array:
    """exp(input) - target input, or input - target log(input + eps) without `log_input`.

    Args:
      input, target: shapes that broadcast.
      full: whether Stirling's approximation of log(target!) is added where target > 1. Elsewhere it has no
        gradient; torch's gradient by a target of 0 is NaN.
      reduction: "none", "mean" or "sum".

    torch counterpart: `torch.nn.functional.poisson_nll_loss`. Source: aten/src/ATen/native/Loss.cpp.
    """
    target = values(target, "target")
    loss = jnp.exp(input) - target * input if log_input else input - target * jnp.log(input + eps)
    if full:
        # Both branches are differentiated: log(0) in the unused one would make the gradient NaN.
        large = target > 1
        t = jnp.where(large, target, 1)
        loss = loss + jnp.where(large, t * jnp.log(t) - t + 0.5 * jnp.log(2 * math.pi * t), 0)
    return reduce(loss, reduction)


def gaussian_nll_loss(
    input: jax.Array,
    target: ArrayLike,
    var: ArrayLike,
    *,
    full: bool = False,
    eps: NonNegative = 1e-6,
    reduction: str = "mean",
) -> jax.Array:
    """(log var + (input - target)^2 / var) / 2.

    Args:
      input, target, reduction: as for `poisson_nll_loss`.
      var: of input's shape, or without its last axis, or with an axis of 1 in place of one of input's; or one
        number. It is clamped to eps, which its gradient ignores, as in torch.
      full: whether log(2 pi) / 2 is added.

    Raises: ValueError: a different shape of `var`; a negative entry, outside of `jax.jit`.

    torch counterpart: `torch.nn.functional.gaussian_nll_loss`. Source: torch/nn/functional.py.
    """
    if not isinstance(var, jax.core.Tracer) and np.any(np.asarray(var) < 0):
        raise ValueError("var has negative entry/entries")
    if isinstance(var, int | float):
        var = jnp.full_like(input, var)
    var = jnp.asarray(var)
    if var.shape == input.shape[:-1]:
        var = var[..., None]
    differing = [n for n, m in zip(var.shape, input.shape, strict=False) if n != m]
    if var.ndim != input.ndim or differing not in ([], [1]):
        raise ValueError("var is of incorrect size")
    var = var + jax.lax.stop_gradient(clamp_min(var, eps) - var)
    loss = 0.5 * (jnp.log(var) + jnp.square(input - values(target, "target")) / var)
    return reduce(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)
