"""The halves of a frame: one to develop on, whose failures are read, and one that is only asked."""

from __future__ import annotations

import random
from collections.abc import Iterable

SEED = 32


def halves(names: Iterable[str], seed: int = SEED) -> tuple[list[str], list[str]]:
    """Draw the development half and the reported half of a frame's names; a sample is the first of a half."""
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    return drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
