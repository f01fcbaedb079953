"""CommHook: what a hook is, and Bucket, what it is given.

torch's hook is a function of a state, which it changes, and of a bucket, and returns a future. Here it is a
pair of pure functions, as in optax: what a replica remembers goes in and comes out, and the reduction is
traced into the step, where XLA decides when it is sent (docs/semantics.md row H1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from .._typing import PyTree
from .message import Message


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What a communication hook is given: one replica's gradients, not yet divided.

    Attributes:
      gradients: a list of arrays, one for each parameter.
      replicas: the number that a mean divides by.
      axis_name: the mesh axis over which to communicate, for `jax.lax.psum` and the like.
      index: which replica this is, a scalar on the device.
      message: what is sent; `sum` is the way to it.

    torch counterpart: `torch.distributed.GradBucket`; there is one of them for all parameters.
    """

    gradients: list[jax.Array]
    replicas: int
    axis_name: str
    index: jax.Array
    message: Message

    def sum(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The sum of each over all replicas, sent together with the loss and the buffers.

        Not inside of `jax.lax.cond` and the like: use `jax.lax.psum(x, axis_name)` there.
        """
        return self.message.sum(arrays)


class CommHook(NamedTuple):
    """How gradients are reduced, as a pair of functions like an optax transformation.

    Attributes:
      init: `init(parameters) -> state`, a tree of arrays that every replica keeps for itself.
      reduce: `reduce(state, bucket) -> (state, gradients)`, traced into the step on every replica; the
        gradients that it returns must be equal on all of them.

    torch counterpart: the pair `(state, hook)` of `register_comm_hook` (docs/semantics.md row H1).
    """

    init: Callable[[list[jax.Array]], PyTree]
    reduce: Callable[[PyTree, Bucket], tuple[PyTree, list[jax.Array]]]
