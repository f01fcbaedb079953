"""largest: how many rows fit into a device, found by compiling for a few numbers of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

COMPILES = 6
"""At most. A step's bytes are nearly a line in its rows, so three are usual."""

GROWTH = 100
"""Times the largest number that is known, and no more: the line is not trusted further."""


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
    """Where the line through two known numbers meets the room; a known one when all is found out."""
    fits = max((b for b, held in known.items() if held <= room), default=0)
    over = min((b for b, held in known.items() if held > room), default=0)
    low, high = fits + 1, over - 1 if over else GROWTH * max(known)
    if low > high:
        return fits or 1
    if over and len(known) % 3 == 0:  # where it is no line, halves find it
        return (low + high) // 2
    a, b = (fits, over) if fits and over else sorted(known, key=lambda n: abs(known[n] - room))[:2]
    slope = (known[b] - known[a]) / (b - a)
    if slope <= 0:
        return (low + high) // 2
    # The one behind a number that fits: if it does not, the search ends.
    return max(min(int(a + (room - known[a]) / slope), high), low)
