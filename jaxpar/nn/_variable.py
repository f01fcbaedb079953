"""Creating and reading a layer's variables, optional ones included."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from .._typing import PyTree, Shape


def optional(exists: bool, create: Callable[[], nnx.Variable]) -> nnx.Variable | None:
    """The variable, or the None that Flax takes for one that may be there."""
    return create() if exists else nnx.data(None)


def constant(
    exists: bool, value: float, shape: Shape, dtype: DTypeLike, kind: type[nnx.Variable] = nnx.Param
) -> nnx.Variable | None:
    """A variable filled with one value, or None if the layer has none."""
    return optional(exists, lambda: kind(jnp.full(shape, value, dtype)))


def uniform(rngs: nnx.Rngs, shape: Shape, fan_in: int, dtype: DTypeLike) -> nnx.Param:
    """A parameter from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as torch draws weights and biases alike.

    torch writes it as kaiming_uniform with a = sqrt(5). Source: torch/nn/modules/conv.py, linear.py.
    """
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


def arrays(*variables: nnx.Variable | None) -> tuple[jax.Array | None, ...]:
    """The variables' arrays; None for None."""
    return tuple(None if variable is None else variable[...] for variable in variables)


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """The arrays of a tree in the type of the computation; as they are if that is None."""
    return tree if dtype is None else jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)
