"""throttle: how far Python runs ahead of virtual devices, which have no queue of their own.

Where there are more devices than cores, a step competes with the threads of earlier steps. Since JAX 0.12
waiting gains nothing (`benchmarks/train_step/ahead.py`).
"""

from __future__ import annotations

import collections

import jax

from .._devices.virtual import cores
from .._upstream import STEPS_COMPETE

# XLA lets 32 steps be started, and then a step of a small net on 4 devices and 2 cores takes a tenth longer
# than with 4, which keep the cores as busy.
STEPS = 4


class Throttle:
    def __init__(self) -> None:
        self._losses: collections.deque[jax.Array] = collections.deque()
        self._waits: bool | None = None if STEPS_COMPETE else False

    def add(self, loss: jax.Array) -> None:
        """Record the loss of a step that was started; on return, the step STEPS earlier has ended."""
        if self._waits is None:
            devices = loss.devices()
            self._waits = len(devices) > cores() and all(d.platform == "cpu" for d in devices)
        if not self._waits:
            return
        self._losses.append(loss)
        if len(self._losses) > STEPS:
            earlier = self._losses.popleft()
            if not earlier.is_deleted():  # its owner may have donated it
                earlier.block_until_ready()
