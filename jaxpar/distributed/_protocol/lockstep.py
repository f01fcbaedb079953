"""An exchange of texts among all ranks of a group, and the end of `join`, whose rounds are such exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .effects import Begin, Delete, Effects, Post, Read, ReadFolder


class Lockstep:
    """This rank's numbers of exchanges, by folder of the store."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def collect(
        self, folder: str, begin: Begin, ranks: Sequence[int], rank: int, text: str
    ) -> Effects[list[str | None]]:
        """Return the texts of `ranks`, whose entry `rank` is this one; None for those that were late."""
        self._calls[folder] += 1
        call = self._calls[folder]
        yield begin
        # Written before the first read, or two ranks would wait for each other's text.
        yield Post(f"{folder}/{call}/{rank}", text)
        texts: list[str | None] = [None] * len(ranks)
        for i, sender in enumerate(ranks):
            texts[i] = text if i == rank else (yield Read(f"{folder}/{call}/{i}", sender))
            # After a timeout, ranks after this one may still have arrived: read what exists without waiting.
            if texts[i] is None:
                stored = yield ReadFolder(f"{folder}/{call}")
                return [stored.get(f"{folder}/{call}/{i}") for i in range(len(ranks))]
        # This call is complete, so every rank has begun it and has therefore read all texts of the previous.
        if call > 1:
            yield Delete(f"{folder}/{call - 1}/{rank}")
        return texts


# join: a rank without batches announces that, and takes part in the other ranks' steps, so that all ranks run
# the same programs and leave in the same round.
def exhausted(announcements: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of the ranks that have no batch left."""
    return [r for r, announcement in enumerate(announcements) if "kinds" not in announcement]


def is_over(announcements: Sequence[Mapping[str, Any]]) -> bool:
    return len(exhausted(announcements)) == len(announcements)
