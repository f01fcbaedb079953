"""Dropout, FeatureDropout, AlphaDropout and FeatureAlphaDropout."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from . import functional
from ._checks import check_probability
from ._layer import Layer


class Dropout(Layer):
    """Zero elements with probability p and divide the others by 1 - p, in training.

    Args:
      p: the probability of being dropped.
      rngs: its stream `dropout` is forked, so each layer draws its own numbers.

    `deterministic` is False in training and True after `module.eval()`.

    Raises: ValueError: at construction, for p outside of [0, 1].

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from jaxpar import nn
    >>> layer = nn.Dropout(0.5, rngs=nnx.Rngs(0))
    >>> layer.eval()
    >>> layer(jnp.ones(3)).tolist()
    [1.0, 1.0, 1.0]

    torch counterpart: `torch.nn.Dropout`, with a mask drawn by JAX.
    """

    def __init__(self, p: float = 0.5, *, rngs: nnx.Rngs):
        check_probability(p)
        self.p = p
        self.deterministic = False
        self.rngs = rngs.dropout.fork()

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.dropout(x, self.p, **self._mode())

    def _mode(self) -> dict[str, Any]:
        draws = not self.deterministic and 0 < self.p < 1
        return {"training": not self.deterministic, "key": self.rngs() if draws else None}


class FeatureDropout(Dropout):
    """`Dropout` of complete channels of [N, *S, C]. torch counterpart: `torch.nn.Dropout1d/2d/3d`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.feature_dropout(x, self.p, **self._mode())


class AlphaDropout(Dropout):
    """Dropout after SELU: preserves mean and variance; the arguments are `Dropout`'s.

    torch counterpart: `torch.nn.AlphaDropout`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.alpha_dropout(x, self.p, **self._mode())


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of complete channels of [N, *S, C].

    torch counterpart: `torch.nn.FeatureAlphaDropout`.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return functional.feature_alpha_dropout(x, self.p, **self._mode())
