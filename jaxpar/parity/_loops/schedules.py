"""Describe a schedule of rates by its phases, and how two schedules differ in shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

LEAST_OF_SHAPE = 5
"""Rates that a shape must explain."""
CLOSE_RATIO = 1e-6
"""The relative error of a ratio of two rates, which optax computes in float32."""
MOST = 4
"""Pieces of constant ratio, or changes of a rate, that a sentence lists."""

LEAST = 4
"""Rates that a phase must explain, two of which define a line."""
CLOSE = 3e-6
"""Relative to the largest rate: optax computes schedules in float32."""
POINTS = 24
"""The rates of a long phase by whose differences the length of a cosine is measured."""
POWERS = (2.0, 3.0, 0.9)


def described(rates: np.ndarray) -> str:
    """Return the phases, as "rises linearly from 0.1 to 1 until update 5, then stays at 1"; "" if unknown."""
    text, period = _phases(rates), _period(rates)
    if text or period == 1 or not (text := _phases(rates[::period])):
        return text
    return f"changes every {period} updates (counted as one here): {text}"


def _period(rates: np.ndarray) -> int:
    """Return how many updates keep a rate, such as an epoch, if each rate is kept as long; 1 otherwise."""
    moves = np.flatnonzero(np.diff(rates)) + 1
    if len(moves) < LEAST - 1:
        return 1
    period = int(moves[0])
    return period if np.array_equal(moves, period * np.arange(1, len(moves) + 1)) else 1


def _phases(rates: np.ndarray) -> str:
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


def ratio_pieces(q: np.ndarray, r: np.ndarray) -> str:
    """Return from which update on JAX's rates are how many times torch's, if few ratios explain them."""
    with np.errstate(all="ignore"):
        ratios = r / q
    finite = np.flatnonzero(np.isfinite(ratios))
    starts: list[int] = []
    for i in finite:
        if not starts or abs(ratios[i] - ratios[starts[-1]]) > CLOSE_RATIO * abs(ratios[starts[-1]]) + 1e-12:
            starts.append(int(i))
    if len(finite) < LEAST_OF_SHAPE or not 2 <= len(starts) <= min(MOST, len(finite) // 2):
        return ""
    values = [float(ratios[i]) for i in starts]
    ends = [round(value, 6) for value in values]
    if ends == [1.0, 0.0]:
        return f"torch trains it in all updates (JAX in the first {starts[1]} alone)"
    if ends == [0.0, 1.0]:
        return f"torch trains it in all updates (JAX from update {starts[1] + 1} on)"
    texts = [
        f"{value:.6g} times as large from update {start + 1} on"
        for value, start in zip(values, starts, strict=True)
        if start or abs(value - 1) > CLOSE_RATIO
    ]
    return f"the rate's schedule (JAX's is {', '.join(texts)})"


def power(q: np.ndarray, r: np.ndarray) -> str:
    """Return the power of torch's rates that JAX's are proportional to, if they are."""
    positive = np.isfinite(q) & np.isfinite(r) & (q > 0) & (r > 0)
    if positive.sum() < LEAST_OF_SHAPE or np.ptp(np.log(q[positive])) < 0.1:
        return ""
    x, y = np.log(q[positive]), np.log(r[positive])
    exponent, constant = np.polyfit(x, y, 1)
    if np.abs(y - exponent * x - constant).max() > CLOSE_RATIO or exponent < 0.01 or abs(exponent - 1) < 1e-5:
        return ""
    return f"the rate's schedule (JAX's falls as torch's to the power {exponent:.4g})"


def rate_limit(q: np.ndarray, r: np.ndarray) -> str:
    """Return the rate below or above which one schedule does not go, if this is the difference."""
    for name, other, x, y in (("JAX", "torch", q, r), ("torch", "JAX", r, q)):
        for change, extreme, end in (
            (np.maximum, y.min(), f"does not fall below {y.min():.6g}"),
            (np.minimum, y.max(), f"does not rise above {y.max():.6g}"),
        ):
            limited = np.abs(y - extreme) <= CLOSE_RATIO * np.abs(extreme)
            if 1 < limited.sum() < len(y) and np.allclose(change(x, extreme), y, CLOSE_RATIO, 0):
                return f"the rate's schedule ({name}'s {end}, {other}'s does)"
    return ""


def other_end(q: np.ndarray, r: np.ndarray) -> str:
    """Return that both schedules have one shape and one beginning, and not one end, if this is so."""
    unequal = np.flatnonzero(np.abs(q - r) > CLOSE_RATIO * np.abs(q))
    x, y = (rates[unequal[0] if len(unequal) else 0 :] for rates in (q, r))
    if len(x) < LEAST_OF_SHAPE or not np.isfinite([x, y]).all() or np.ptp(x) <= 0.01 * x.max():
        return ""
    if np.ptp(np.diff(x)) <= CLOSE_RATIO * np.ptp(x):  # two lines may have two lengths
        return ""
    slope, constant = np.polyfit(x, y, 1)
    common = constant / (1 - slope) if slope != 1 else np.inf
    fits = np.abs(slope * x + constant - y).max() <= CLOSE_RATIO * np.ptp(y)
    if not fits or slope <= 0 or not np.isclose(common, q.max(), 1e-5):
        return ""
    ends = f"from {common:.4g} torch's falls to {x.min():.4g}, JAX's to {y.min():.4g}"
    return f"the rate's schedule ({ends}, in one shape: another final rate)"


def shapes(q: np.ndarray, r: np.ndarray) -> str:
    """Return what distinguishes the shapes of two schedules, as the end of a sentence."""
    texts = described(q), described(r)
    if texts[0] and texts[1] and texts[0] != texts[1]:
        return f"; torch's {texts[0]}; JAX's {texts[1]}"
    return "".join(f"; torch's {verb} {x}, JAX's {y}" for verb, x, y in _shapes(q, r))


def _shapes(q: np.ndarray, r: np.ndarray) -> Iterator[tuple[str, str, str]]:
    starts = _restarts(q), _restarts(r)
    if starts[0] != starts[1]:
        yield "starts again", _listed(starts[0]), _listed(starts[1])
    changes = _changes(q), _changes(r)
    if changes[0] != changes[1] and all(0 < len(x) < len(q) // 3 for x in changes):
        yield "changes", _listed(changes[0]), _listed(changes[1])


def _listed(updates: list[int]) -> str:
    texts = [str(update) for update in updates[:MOST]] + ["..."] * (len(updates) > MOST)
    return f"in update {', '.join(texts)}" if updates else "in none"


def _restarts(x: np.ndarray) -> list[int]:
    """Return the updates in which a rate jumps up after falling."""
    y = np.diff(x)
    least = CLOSE_RATIO * np.abs(x).max(initial=0.0)
    return [i + 2 for i in range(1, len(y)) if y[i - 1] < -least and y[i] > max(least, -2 * y[i - 1])]


def _changes(x: np.ndarray) -> list[int]:
    """Return the updates in which a rate changes."""
    return [int(i) + 2 for i in np.flatnonzero(np.abs(np.diff(x)) > CLOSE_RATIO * np.abs(x[1:]))]
