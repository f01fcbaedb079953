"""prelu, pad and normalize with torch's axes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ... import functional as last
from ..axes import turned


def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`jaxpar.nn.functional.prelu` of [N, C, *S]. torch counterpart: `F.prelu`."""
    return turned(lambda rows: last.prelu(rows, weight), x) if x.ndim > 1 else last.prelu(x, weight)


def pad(x: jax.Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> jax.Array:
    """`jaxpar.nn.functional.pad` of the last axes of x, the last one first. torch counterpart: `F.pad`."""
    return last.pad(jnp.expand_dims(x, -1), pad, mode, value)[..., 0]


def normalize(x: jax.Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> jax.Array:
    """Divide x by its p-norm along `dim`, axis 1 by default. torch counterpart: `F.normalize`."""
    return last.normalize(x, p, dim, eps)
