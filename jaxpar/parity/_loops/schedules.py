"""Describe a schedule of rates by its phases: how it rises, and how it falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

LEAST = 4
"""Rates that a phase must explain, two of which define a line."""
CLOSE = 3e-6
"""Relative to the largest rate: optax computes schedules in float32."""
POINTS = 24
"""The rates of a long phase by whose differences the length of a cosine is measured."""
POWERS = (2.0, 3.0, 0.9)


def described(rates: np.ndarray) -> str:
    """Return the phases, as "rises linearly from 0.1 to 1 until update 5, then stays at 1"; "" if unknown."""
    if len(rates) < LEAST or not np.isfinite(rates).all() or rates.min() < 0 or not rates.any():
        return ""
    peak = int(np.argmax(rates >= rates.max() * (1 - CLOSE)))
    texts = []
    if peak > 1:
        rise = _rise(rates[: peak + 1])
        if not rise:
            return ""
        texts.append(f"{rise} from {rates[0]:.4g} to {rates[peak]:.4g} until update {peak + 1}")
    fall = _fall(rates, peak if peak > 1 else 0)
    return ", then ".join([*texts, fall]) if fall else ""


def _rise(rates: np.ndarray) -> str:
    if _line(rates):
        return "rises linearly"
    return "rises along a cosine" if len(rates) >= LEAST and _cosine(rates) else ""


def _fall(rates: np.ndarray, start: int) -> str:
    """Return what follows the rise: a plateau, a fall of one form, and a constant end."""
    moves = np.flatnonzero(np.abs(np.diff(rates[start:])) > CLOSE * rates.max()) + start
    if not len(moves):
        return f"stays at {rates[start]:.4g}"
    first, last = int(moves[0]), int(moves[-1]) + 1
    ends = len(rates) - 1, last
    for begin, end in ((x, y) for x in (start, first, first + 1) for y in ends):
        if form := _form(rates[begin : end + 1], begin):
            before = f"stays until update {first + 1}, then " if begin > start and first > start else ""
            if begin > first:
                before += f"jumps to {rates[begin]:.4g} in update {begin + 1}, then "
            after = (
                f", then stays at {_rate(rates, end)} from update {end + 1} on"
                if end < len(rates) - 1
                else ""
            )
            return f"{before}{form}{after}"
    return ""


def _rate(rates: np.ndarray, i: int) -> str:
    return f"{rates[i]:.4g}" if rates[i] > CLOSE * rates.max() else "0"


def _form(rates: np.ndarray, start: int) -> str:
    if len(rates) < LEAST:
        return ""
    return next((text for find in FORMS for text in find(rates)), "") or _steps(rates, start)


def _line(values: np.ndarray) -> bool:
    """Return whether values change by the same amount each time."""
    line = np.linspace(values[0], values[-1], len(values))
    scale = max(np.abs(values).max(), abs(values[-1] - values[0]))
    return bool(values[-1] != values[0] and np.abs(values - line).max() <= CLOSE * scale)


def _linear(rates: np.ndarray) -> Iterator[str]:
    if _line(rates):
        yield f"falls linearly by {(rates[0] - rates[-1]) / (len(rates) - 1):.4g} an update"


def _exponential(rates: np.ndarray) -> Iterator[str]:
    if rates.min() <= 0:
        return
    factor = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
    if np.abs(rates - rates[0] * factor ** np.arange(len(rates))).max() <= CLOSE * rates[0]:
        yield f"falls to {factor:.5g} of it in each update"


def _root(rates: np.ndarray) -> Iterator[str]:
    if rates.min() > 0 and _line(rates**-2.0):
        yield "falls with the inverse square root of the update"


def _power(rates: np.ndarray) -> Iterator[str]:
    for power in POWERS:
        roots = rates ** (1 / power)
        if _line(roots):
            length = roots[0] / (roots[0] - roots[1])
            yield f"falls linearly to the power {power:g} over {length:.4g} updates"


def _half_cosine(rates: np.ndarray) -> Iterator[str]:
    if fitted := _cosine(rates):
        length, lowest = fitted
        yield f"falls along a cosine over {length:.4g} updates to {lowest:.4g}"


def _steps(rates: np.ndarray, start: int) -> str:
    """Return a fall by one factor at regular distances, as of torch's StepLR, or in a few updates."""
    changed = np.flatnonzero(np.abs(np.diff(rates)) > CLOSE * rates[0]) + 1
    if not 1 <= len(changed) <= len(rates) // 3 or rates.min() <= 0:
        return ""
    factors, distances = rates[changed] / rates[changed - 1], set(np.diff(changed))
    if np.ptp(factors) > 1e-5 * factors.max():
        return ""
    updates = changed + start + 1
    if len(changed) > 2 and len(distances) == 1:
        when = f"every {distances.pop()} updates, first in update {updates[0]}"
    else:
        when = f"in update {', '.join(map(str, updates[:4]))}" + (", ..." if len(updates) > 4 else "")
    return f"falls to {factors[0]:.4g} of it {when}"


FORMS: tuple[Callable[[np.ndarray], Iterator[str]], ...] = (
    _linear,
    _exponential,
    _half_cosine,
    _root,
    _power,
)


def _cosine(rates: np.ndarray) -> tuple[float, float] | None:
    """Return the length in updates and the lowest rate of half a cosine, if rates follow one."""
    stride = max(1, (len(rates) - 1) // POINTS)
    changes = np.diff(rates[::stride])
    middle, sides = changes[1:-1], changes[2:] + changes[:-2]
    square = float(middle @ middle)
    cosine = float(middle @ sides) / square / 2 if square > 0 else 0.0
    # A small part of a cosine shows neither its length nor its end.
    if not 0 < cosine < 1 - 1e-6 or np.arccos(cosine) * len(changes) < 1.0:
        return None
    turn = float(np.arccos(cosine)) / stride
    angles = turn * np.arange(len(rates))
    terms = np.stack([np.ones_like(angles), np.cos(angles), np.sin(angles)], 1)
    shares = np.linalg.lstsq(terms, rates)[0]
    if np.abs(terms @ shares - rates).max() > 1e-4 * np.ptp(rates):
        return None
    lowest = float(shares[0] - np.hypot(shares[1], shares[2]))
    return np.pi / turn, lowest if abs(lowest) > 1e-4 * np.ptp(rates) else 0.0
