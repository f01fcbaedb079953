"""CommHook: the interface of a hook, and Bucket, its argument (docs/semantics.md row H1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from .._typing import PyTree
from .message import Message


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A communication hook's argument: one replica's gradients, not yet divided.

    Attributes:
      gradients: a list of arrays, one for each parameter.
      replicas: the divisor of a mean.
      axis_name: the mesh axis over which to communicate, for `jax.lax.psum` and the like.
      index: this replica's index, a scalar on the device.
      message: the pending sums; call `sum` instead of using it directly.

    torch counterpart: `torch.distributed.GradBucket`; here one bucket holds all parameters' gradients.
    """

    gradients: list[jax.Array]
    replicas: int
    axis_name: str
    index: jax.Array
    message: Message

    def sum(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Return each array's sum over all replicas. Inside `jax.lax.cond`, use `jax.lax.psum` instead."""
        return self.message.sum(arrays)


class CommHook(NamedTuple):
    """A reduction of gradients, as a pair of functions like an optax transformation.

    Attributes:
      init: `init(parameters) -> state`, a tree of arrays that each replica stores separately.
      reduce: `reduce(state, bucket) -> (state, gradients)`, traced into the step on every replica; the
        returned gradients must be equal on all of them.

    torch counterpart: the pair `(state, hook)` of `register_comm_hook` (docs/semantics.md row H1).

    >>> from jaxpar.comm_hooks import CommHook
    >>> clipped = CommHook(
    ...     init=lambda parameters: (),
    ...     reduce=lambda state, bucket: (state, bucket.sum([g.clip(-1, 1) for g in bucket.gradients])),
    ... )
    >>> clipped.init([])
    ()
    """

    init: Callable[[list[jax.Array]], PyTree]
    reduce: Callable[[PyTree, Bucket], tuple[PyTree, list[jax.Array]]]
