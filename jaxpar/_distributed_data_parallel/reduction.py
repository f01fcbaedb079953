"""reduction: the gradients of all replicas become their mean, in one all-reduce.

torch cuts them into buckets of 25 MiB, so that communicating can begin before the backward pass has ended
(torch-semantics 2.1 D19). Here all of them are one expression: XLA fuses and schedules it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._typing import REPLICA, PyTree


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What a communication hook is given: one replica's gradients, not yet divided.

    Attributes:
      gradients: a list of arrays, one for each parameter.
      replicas: the number that a mean divides by.
      axis_name: the mesh axis over which to communicate, for `jax.lax.psum` and the like.
      index: which replica this is, a scalar on the device.
    """

    gradients: list[jax.Array]
    replicas: int
    axis_name: str
    index: jax.Array


class CommHook(NamedTuple):
    """How gradients are reduced, as a pair of functions like an optax transformation.

    Attributes:
      init: `init(parameters) -> state`, a tree of arrays that every replica keeps for itself.
      reduce: `reduce(state, bucket) -> (state, gradients)`, traced into the step on every replica; the
        gradients that it returns must be equal on all of them.
    """

    init: Callable[[list[jax.Array]], PyTree]
    reduce: Callable[[PyTree, Bucket], tuple[PyTree, list[jax.Array]]]


def mean(state: PyTree, bucket: Bucket) -> tuple[PyTree, list[jax.Array]]:
    """The default: scaled first and summed then, as torch does it (torch-semantics 2.1 D4)."""
    return state, jax.tree.map(
        lambda g: lax.psum(g * _inverse(bucket.replicas, g.dtype), REPLICA), bucket.gradients
    )


def _inverse(n: int, dtype: Any) -> jax.Array:
    # torch multiplies by a float32 1/W, which for a W that is no power of two is not a division by W.
    return jnp.asarray(1 / n, dtype)


MEAN = CommHook(lambda parameters: (), mean)
