"""dropout, feature_dropout and the two alpha dropouts, as functions of their mask.

torch's random numbers cannot be had from a JAX key, so each function is two things: a mask, drawn
from `key` or given, and what is done with it, which is torch's formula.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

ALPHA = 1.7580993408473766
"""SELU tends to minus this for small x: its scale times its alpha. Source: ATen/native/Dropout.cpp."""


def dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = True,
    *,
    key: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Zeroes elements with probability p and divides the others by 1 - p.

    Args:
      x: [...].
      p: the probability to be dropped.
      training: without it x is returned as it is.
      key: where the mask is drawn from; not needed with `mask`, nor outside of training.
      mask: True for what is kept, of a shape that broadcasts to x's.

    Returns:
      x's shape.

    Raises:
      ValueError: p outside of [0, 1]; neither key nor mask in training.

    torch counterpart: `torch.nn.functional.dropout`: x * (mask / (1 - p)).
    """
    return _masked("dropout", _drop, x, p, training, key, mask, x.shape)


def feature_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = True,
    *,
    key: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """As `dropout`, for whole channels: x is [N, *S, C] and the mask [N, 1, ..., 1, C].

    torch counterpart: `torch.nn.functional.dropout1d/2d/3d`, `torch.feature_dropout`.
    """
    shape = _channels("feature_dropout", x)
    return _masked("feature_dropout", _drop, x, p, training, key, mask, shape)


def alpha_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = False,
    *,
    key: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Dropout after SELU: what is dropped becomes SELU's lowest value; mean and variance stay.

    Arguments are those of `dropout`; `training` is False if left out, as in torch.

    torch counterpart: `torch.nn.functional.alpha_dropout`. Source: ATen/native/Dropout.cpp.
    """
    return _masked("alpha_dropout", _alpha_drop, x, p, training, key, mask, x.shape)


def feature_alpha_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = False,
    *,
    key: jax.Array | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """As `alpha_dropout`, for whole channels: x is [N, *S, C] and the mask [N, 1, ..., 1, C].

    torch counterpart: `torch.nn.functional.feature_alpha_dropout`.
    """
    shape = _channels("feature_alpha_dropout", x)
    return _masked("feature_alpha_dropout", _alpha_drop, x, p, training, key, mask, shape)


def check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _channels(function: str, x: jax.Array) -> tuple[int, ...]:
    if x.ndim < 2:
        raise ValueError(f"{function}: x should be [N, *S, C], two axes or more, but has shape {x.shape}.")
    return (x.shape[0], *[1] * (x.ndim - 2), x.shape[-1])


def _drop(x: jax.Array, kept: jax.Array, p: float) -> jax.Array:
    return x * (kept / (1 - p))


def _alpha_drop(x: jax.Array, kept: jax.Array, p: float) -> jax.Array:
    a = 1 / ((ALPHA**2 * p + 1) * (1 - p)) ** 0.5
    return x * (kept * a) + ((kept - 1) * (ALPHA * a) + ALPHA * a * p)


def _masked(
    function: str,
    drop: Callable[[jax.Array, jax.Array, float], jax.Array],
    x: jax.Array,
    p: float,
    training: bool,
    key: jax.Array | None,
    mask: jax.Array | None,
    shape: tuple[int, ...],
) -> jax.Array:
    check_probability(p)
    if p == 0 or not training:
        return x
    if p == 1:  # both forms end here in torch
        return x * jnp.zeros((), x.dtype)
    if mask is None:
        if key is None:
            raise ValueError(f"{function}: there is neither a key nor a mask, and training is True.")
        mask = jax.random.bernoulli(key, 1 - p, shape)
    return drop(x, mask.astype(x.dtype), p)
