"""dropout, feature_dropout, alpha_dropout and feature_alpha_dropout, as functions of their mask.

No JAX key gives torch's random numbers, but with torch's mask these functions give torch's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from ..._typing import Shape
from .._checks import check_probability

Key: TypeAlias = jax.Array | nnx.RngStream | nnx.Rngs
"""A key; or a stream, from which a key is drawn only if dropout needs one."""
ALPHA = 1.7580993408473766
"""The limit of SELU for small x is minus this: its scale times its alpha. Source: ATen/native/Dropout.cpp."""


def dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = True,
    *,
    key: Key | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Zero elements with probability p and divide the others by 1 - p.

    Args:
      p: the probability of being dropped.
      training: if False, x is returned unchanged.
      key: draws the mask; not needed with `mask` or outside of training. A key is drawn from an
        `nnx.RngStream` only if needed.
      mask: True for elements to keep, of a shape that broadcasts to x's.

    Raises: ValueError: p outside of [0, 1]; neither key nor mask in training.

    >>> import jax.numpy as jnp
    >>> from jaxpar.nn import functional as F
    >>> F.dropout(jnp.ones(4), 0.5, mask=jnp.array([True, False, True, True])).tolist()
    [2.0, 0.0, 2.0, 2.0]

    torch counterpart: `torch.nn.functional.dropout`: x * (mask / (1 - p)).
    """
    return _masked("dropout", _drop, x, x.shape, p, training, key, mask)


def feature_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = True,
    *,
    key: Key | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """`dropout` of complete channels: x is [N, *S, C] and the mask [N, 1, ..., 1, C].

    torch counterpart: `torch.nn.functional.dropout1d/2d/3d`, `torch.feature_dropout`.
    """
    return _masked("feature_dropout", _drop, x, None, p, training, key, mask)


def alpha_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = False,
    *,
    key: Key | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Dropout after SELU: dropped elements become SELU's lowest value; preserves mean and variance.

    The arguments are `dropout`'s, but `training` is False by default, as in torch.

    torch counterpart: `torch.nn.functional.alpha_dropout`. Source: ATen/native/Dropout.cpp.
    """
    return _masked("alpha_dropout", _alpha_drop, x, x.shape, p, training, key, mask)


def feature_alpha_dropout(
    x: jax.Array,
    p: float = 0.5,
    training: bool = False,
    *,
    key: Key | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """`alpha_dropout` of complete channels: x is [N, *S, C] and the mask [N, 1, ..., 1, C].

    torch counterpart: `torch.nn.functional.feature_alpha_dropout`.
    """
    return _masked("feature_alpha_dropout", _alpha_drop, x, None, p, training, key, mask)


def _drop(x: jax.Array, mask: jax.Array, p: float) -> jax.Array:
    # torch divides the mask, not x. The product also makes a dropped infinity NaN, as in torch.
    return x * (mask / (1 - p))


def _alpha_drop(x: jax.Array, mask: jax.Array, p: float) -> jax.Array:
    a = 1 / ((ALPHA**2 * p + 1) * (1 - p)) ** 0.5
    return x * (mask * a) + ((mask - 1) * (ALPHA * a) + ALPHA * a * p)


def _masked(
    function: str,
    drop: Callable[[jax.Array, jax.Array, float], jax.Array],
    x: jax.Array,
    shape: Shape | None,
    p: float,
    training: bool,
    key: Key | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Call `drop` with a mask of this shape; None drops complete channels of x."""
    if shape is None:
        if x.ndim < 2:
            raise ValueError(
                f"{function}: x should be [N, *S, C], two axes or more, but has shape {x.shape}."
            )
        shape = (x.shape[0], *[1] * (x.ndim - 2), x.shape[-1])
    check_probability(p)
    if p == 0 or not training:
        return x
    # The formulas would divide by 0. torch returns this product, which keeps NaN, for both.
    if p == 1:
        return x * jnp.zeros((), x.dtype)
    if mask is None:
        if key is None:
            raise ValueError(f"{function}: there is neither a key nor a mask, and training is True.")
        if isinstance(key, nnx.RngStream | nnx.Rngs):
            mask = key.bernoulli(1 - p, shape)
        else:
            mask = jax.random.bernoulli(key, 1 - p, shape)
    return drop(x, mask.astype(x.dtype), p)
