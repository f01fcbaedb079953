"""The halves of a frame: one to develop on, whose failures are read, and one that is only asked."""

from __future__ import annotations

import random
from collections.abc import Iterable

SEED = 32


def halves(names: Iterable[str], seed: int = SEED) -> tuple[frozenset[str], frozenset[str]]:
    """Draw the development half and the reported half of a frame's names."""
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    return frozenset(drawn[: len(drawn) // 2]), frozenset(drawn[len(drawn) // 2 :])
