"""The end of all ranks after an exception on one of them."""

from __future__ import annotations

from collections.abc import Mapping

from .effects import Effects, Post, Read, Send


class Ending:
    """One rank's side. `folder` has a key for each rank that is about to end, except rank 0."""

    def __init__(self, rank: int, size: int, folder: str):
        self._rank, self._size, self._folder = rank, size, folder

    def fail(self, fields: Mapping[str, object]) -> Effects[None]:
        """End all ranks; the message ends each of the others, wherever it waits."""
        yield Send("left", fields)
        yield from self.end()

    def end(self) -> Effects[None]:
        """End this rank, and rank 0 last: it hosts the store, without which the others abort."""
        if self._rank:
            yield Post(f"{self._folder}/{self._rank}", "")
        else:
            for other in range(1, self._size):
                yield Read(f"{self._folder}/{other}", other)
