"""join: ranks with different numbers of batches announce every step, until no rank has a batch left.

Each round is one exchange of all ranks. A rank without batches announces that, and takes part in the steps of
the others, so that all ranks run the same programs and leave in the same round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def exhausted(announcements: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of the ranks that have no batch left."""
    return [r for r, announcement in enumerate(announcements) if "kinds" not in announcement]


def is_over(announcements: Sequence[Mapping[str, Any]]) -> bool:
    return len(exhausted(announcements)) == len(announcements)
