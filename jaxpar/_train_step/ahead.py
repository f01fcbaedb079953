"""ahead: how far Python runs ahead of CPU devices.

An accelerator works through its queue while Python prepares the next steps. CPU devices have no queue of
their own: every step that was started holds threads, which compete for the cores with those of the steps
before it. Up to 32 wait like this, and then a step of a small net on 4 virtual devices takes a tenth longer
than with 4, which are enough to keep the cores busy (`benchmarks/train_step/ahead.py`).
"""

from __future__ import annotations

import collections

import jax

STEPS = 4


class Ahead:
    """Waits for the loss of an earlier step, on CPU devices."""

    def __init__(self) -> None:
        self._losses: collections.deque[jax.Array] = collections.deque()
        self._on_cpu: bool | None = None

    def add(self, loss: jax.Array) -> None:
        """A step was started and gives this loss; the one STEPS before it has ended on return."""
        if self._on_cpu is None:
            self._on_cpu = all(d.platform == "cpu" for d in loss.devices())
        if not self._on_cpu:
            return
        self._losses.append(loss)
        if len(self._losses) > STEPS:
            earlier = self._losses.popleft()
            if not earlier.is_deleted():  # its owner may have donated it
                earlier.block_until_ready()
