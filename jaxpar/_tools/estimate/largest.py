"""largest: how many rows fit into a device, found by compiling for a few numbers of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

COMPILES = 6
"""At most. A step's bytes are nearly a line in its rows, so two or three are usual."""


@dataclasses.dataclass(frozen=True)
class Largest:
    """The most rows of one device that were compiled and fit.

    Attributes:
      rows: 0 if not even one fits. peak: bytes of the step with them.
      compiles: programs that were compiled for this.
      sure: whether one row more was compiled, too, and did not fit.
    """

    rows: int
    peak: int
    compiles: int
    sure: bool


def largest(peak: Callable[[int], int], room: float, rows: int, at_rows: int) -> Largest:
    """The line through the two nearest numbers that are known says which is compiled next.

    Args:
      peak: compiles for so many rows of a device and tells the bytes.
      room: bytes that there are. rows, at_rows: a number that is known, and its bytes.
    """
    known = {rows: at_rows}
    guess = 2 * rows if at_rows <= room else max(rows // 2, 1)
    while len(known) <= COMPILES and guess not in known:
        known[guess] = peak(guess)
        guess = _next(known, room)
    fits = [b for b, held in known.items() if held <= room]
    most = max(fits, default=0)
    sure = most + 1 in known if fits else 1 in known
    return Largest(most, known.get(most, min(known.values())), len(known) - 1, sure)


def _next(known: dict[int, int], room: float) -> int:
    """Where a line says that the room ends, between the largest that fits and the smallest that does not."""
    fits = max((b for b, held in known.items() if held <= room), default=0)
    over = min((b for b, held in known.items() if held > room), default=0)
    a, b = sorted(known, key=lambda n: abs(known[n] - room))[:2]
    slope = (known[b] - known[a]) / (b - a)
    guess = int(a + (room - known[a]) / slope) if slope > 0 else 2 * max(known)
    low, high = fits + 1, over - 1 if over else 4 * max(known)
    # The one behind a number that fits: if it does not, the search ends.
    return max(min(guess, high), low) if low <= high else fits or 1
