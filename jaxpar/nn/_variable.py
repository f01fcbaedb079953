"""A layer's variables: made, left out, drawn from torch's distribution, read."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._typing import Shape


def filled(there: bool, value: float, shape: Shape, dtype: Any, kind: type[nnx.Variable] = nnx.Param) -> Any:
    """A variable full of one value, or None where the layer has none."""
    return kind(jnp.full(shape, value, dtype)) if there else nnx.data(None)


def uniform(rngs: nnx.Rngs, shape: Shape, fan_in: int, dtype: Any) -> nnx.Param:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from which torch draws weights and biases alike.

    torch writes it as kaiming_uniform with a = sqrt(5). Source: torch/nn/modules/conv.py, linear.py.
    """
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


def values(*variables: nnx.Variable | None) -> tuple[Any, ...]:
    """Their arrays; None for None."""
    return tuple(None if variable is None else variable[...] for variable in variables)
