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
    peaks = {rows: at_rows}
    guess = 2 * rows if at_rows <= room else max(rows // 2, 1)
    while len(peaks) <= COMPILES and guess not in peaks:
        peaks[guess] = peak(guess)
        guess = _next(peaks, room)
    fits = [b for b, needed in peaks.items() if needed <= room]
    most = max(fits, default=0)
    sure = most + 1 in peaks if fits else 1 in peaks
    return Largest(most, peaks.get(most, min(peaks.values())), len(peaks) - 1, sure)


def _next(peaks: dict[int, int], room: float) -> int:
    """Where the line through two known numbers meets the room; a known one when all is found out."""
    fits = max((b for b, needed in peaks.items() if needed <= room), default=0)
    over = min((b for b, needed in peaks.items() if needed > room), default=0)
    low, high = fits + 1, over - 1 if over else GROWTH * max(peaks)
    if low > high:
        return fits or 1
    if over and len(peaks) % 3 == 0:  # where it is no line, halves find it
        return (low + high) // 2
    a, b = (fits, over) if fits and over else sorted(peaks, key=lambda n: abs(peaks[n] - room))[:2]
    slope = (peaks[b] - peaks[a]) / (b - a)
    if slope <= 0:
        return (low + high) // 2
    # The one behind a number that fits: if it does not, the search ends.
    return max(min(int(a + (room - peaks[a]) / slope), high), low)
