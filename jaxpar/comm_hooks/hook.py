"""CommHook: the interface of a hook; Bucket, its argument; Message (docs/semantics.md row H1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._typing import PyTree

SMALL = 2**22
"""Bytes from which copying an array costs more than a separate message."""


class Message:
    """Sums arrays over the replicas while a step is traced, and `others` along with the first of them.

    With `flat`, small arrays of one dtype are concatenated.
    """

    def __init__(self, axis_name: str, flat: bool, others: Sequence[jax.Array] = ()):
        self.axis_name, self.flat = axis_name, flat
        self._others = list(others)
        self._summed: list[jax.Array] | None = None if others else []

    def sum(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        if self._summed is not None:
            return self._send(list(arrays))
        summed = self._send([*arrays, *self._others])
        self._summed = summed[len(arrays) :]
        return summed[: len(arrays)]

    def others(self) -> list[jax.Array]:
        if self._summed is None:
            # No hook has summed through this message, so the other arrays are sent alone.
            self.sum([])
        assert self._summed is not None
        return self._summed

    def alone(self) -> Message:
        """Return a message without the other arrays, for sums inside `lax.cond` and the like."""
        return Message(self.axis_name, self.flat)

    def _send(self, arrays: list[jax.Array]) -> list[jax.Array]:
        summed: list[jax.Array] = list(arrays)
        groups: dict[object, list[int]] = {}
        # Only equal dtypes are concatenated: a promotion would change the bits of the sums.
        for i, x in enumerate(arrays):
            small = self.flat and x.nbytes < SMALL
            groups.setdefault(x.dtype if small else i, []).append(i)
        for group in groups.values():
            if len(group) == 1:
                summed[group[0]] = lax.psum(arrays[group[0]], self.axis_name)
                continue
            flat = lax.psum(jnp.concatenate([arrays[i].ravel() for i in group]), self.axis_name)
            ends = np.cumsum([arrays[i].size for i in group])
            for i, piece in zip(group, jnp.split(flat, ends[:-1]), strict=True):
                summed[i] = piece.reshape(arrays[i].shape)
        return summed


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
