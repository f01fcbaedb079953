"""Find how many rows fit into a device, by compiling for a few batch sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

COMPILES = 6
"""At most. A step's bytes are nearly linear in its rows, so three are usual."""

GROWTH = 100
"""The furthest extrapolation: this multiple of the largest compiled batch."""


@dataclasses.dataclass(frozen=True)
class Largest:
    rows: int
    peak: int
    compiles: int
    sure: bool


def largest(peak: Callable[[int], int], room: float, rows: int, at_rows: int) -> Largest:
    """Search by the secant method for the largest batch whose peak is at most `room`."""
    peaks = {rows: at_rows}
    guess = 2 * rows if at_rows <= room else max(rows // 2, 1)
    while len(peaks) <= COMPILES and guess not in peaks:
        peaks[guess] = peak(guess)
        guess = _next(peaks, room)
    fits = [b for b, needed in peaks.items() if needed <= room]
    most = max(fits, default=0)
    # Peaks need not be monotonic, so only a compiled neighbour that does not fit proves the result.
    sure = most + 1 in peaks if fits else 1 in peaks
    return Largest(most, peaks.get(most, min(peaks.values())), len(peaks) - 1, sure)


def _next(peaks: dict[int, int], room: float) -> int:
    """Return the next size to compile; a compiled one when the search is over."""
    fits = max((b for b, needed in peaks.items() if needed <= room), default=0)
    over = min((b for b, needed in peaks.items() if needed > room), default=0)
    low, high = fits + 1, over - 1 if over else GROWTH * max(peaks)
    if low > high:
        return fits or 1
    if over and len(peaks) % 3 == 0:  # bisect now and then, in case the peaks are not on a line
        return (low + high) // 2
    # Interpolate once the limit is bracketed, else extrapolate from the two nearest sizes.
    a, b = (fits, over) if fits and over else sorted(peaks, key=lambda n: abs(peaks[n] - room))[:2]
    slope = (peaks[b] - peaks[a]) / (b - a)
    if slope <= 0:
        return (low + high) // 2
    # At least one row more than the largest that fits: if that does not fit, the search is over.
    return max(min(int(a + (room - peaks[a]) / slope), high), low)
