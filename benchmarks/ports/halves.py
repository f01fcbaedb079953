"""The halves of a frame: one to develop on, whose failures are read, and one that is only asked."""

from __future__ import annotations

import random
from collections.abc import Iterable

from .models import REFUSED

SEED = 32


def halves(names: Iterable[str], seed: int = SEED) -> tuple[list[str], list[str]]:
    """Draw the development half and the reported half of a frame's names; a sample is the first of a half.

    What torch refuses is in neither.
    """
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    both = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    development, reported = ([name for name in half if name not in REFUSED] for half in both)
    return development, reported
