"""Message: a step's sums over the replicas, sent at once.

On CPU devices of several processes XLA sends one message per array, which takes as long as a small model's
step. There, small arrays are concatenated, as in torch's buckets; NCCL does not need this.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
