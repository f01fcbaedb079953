"""The demo's settings. The command line imports this file for every command, so it imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

TRAIN_ROWS = 1437
"""Training rows among the 1797 digits. The last batch of an epoch does not divide evenly over 8 devices."""

LEARNING_RATE, MOMENTUM = 0.05, 0.9

TOLERANCE = 1e-10
"""Relative. Rounding in float64 stays far below it, and no difference in meaning does."""


@dataclass(frozen=True)
class DemoSettings:
    epochs: int = 5
    batch_size: int = 64
    seed: int = 0

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(TRAIN_ROWS / self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:  # from an import hook
        return False
