"""Message: what a step has to sum over the replicas, sent at once.

XLA makes one all-reduce of it, but on CPU devices of several processes that is one message for each array,
and a message takes as long as a small model's step (seven arrays took six times as long as the same in one).
So small arrays are laid end to end there, as in torch's buckets. NCCL has no need of it and would pay for the
copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SMALL = 2**22
"""Bytes. Of larger arrays the copies cost more than the message."""


class Message:
    """Sums over the replicas, while a step is traced.

    Args:
      axis_name: the mesh axis.
      flat: whether small arrays of one dtype become one array.
      others: arrays that go with those of the first call of `sum`.
    """

    def __init__(self, axis_name: str, flat: bool, others: Sequence[jax.Array] = ()):
        self.axis_name, self.flat = axis_name, flat
        self._others = list(others)
        self._summed: list[jax.Array] | None = None if others else []

    def sum(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The sum of each, on every replica."""
        if self._summed is not None:
            return self._send(list(arrays))
        summed = self._send([*arrays, *self._others])
        self._summed = summed[len(arrays) :]
        return summed[: len(arrays)]

    def others(self) -> list[jax.Array]:
        """The sums of the others."""
        if self._summed is None:
            self.sum([])
        assert self._summed is not None
        return self._summed

    def alone(self) -> Message:
        """The same way without the others, for sums inside of `lax.cond` and the like."""
        return Message(self.axis_name, self.flat)

    def _send(self, arrays: list[jax.Array]) -> list[jax.Array]:
        summed: list[jax.Array] = list(arrays)
        groups: dict[object, list[int]] = {}
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
