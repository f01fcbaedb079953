"""What a demo is asked to do. The command line imports it for every command, so it imports nothing heavy."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

TRAIN_ROWS = 1437
"""Of 1797 digits; the rest is for testing. The last batch of an epoch is uneven over 8 devices."""

LEARNING_RATE, MOMENTUM = 0.05, 0.9

TOLERANCE = 1e-10
"""Relative. In float64 rounding stays far below it, and no difference in meaning does."""


class Fault(enum.Enum):
    """Mistakes that can be planted in the JAX side, to prove that the demo would find them."""

    BATCH_NORM = "batch-norm"
    """Flax's reading of BatchNorm's momentum: the part that is kept."""
    LOSS = "loss"
    """The mean over replicas of their means, instead of the mean over rows."""
    ORDER = "order"
    """Batches in another order."""
    WHOLE_BATCH = "whole-batch"
    """No DataParallel, so that BatchNorm sees the whole batch: what plain `jax.jit` computes."""


@dataclass(frozen=True)
class Settings:
    epochs: int = 5
    batch_size: int = 64
    seed: int = 0
    fault: Fault | None = None

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return self.epochs * math.ceil(TRAIN_ROWS / self.batch_size)
