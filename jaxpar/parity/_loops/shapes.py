"""Describe how two schedules differ in their shape: steps, powers, cosines and restarts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .schedules import described

LEAST = 5
"""Rates that a shape must explain."""
CLOSE = 1e-6
"""The relative error of a ratio of two rates, which optax computes in float32."""
MOST = 4
"""Pieces of constant ratio, or changes of a rate, that a sentence lists."""


def ratio_pieces(q: np.ndarray, r: np.ndarray) -> str:
    """Return from which update on JAX's rates are how many times torch's, if few ratios explain them."""
    with np.errstate(all="ignore"):
        ratios = r / q
    finite = np.flatnonzero(np.isfinite(ratios))
    starts: list[int] = []
    for i in finite:
        if not starts or abs(ratios[i] - ratios[starts[-1]]) > CLOSE * abs(ratios[starts[-1]]) + 1e-12:
            starts.append(int(i))
    if len(finite) < LEAST or not 2 <= len(starts) <= min(MOST, len(finite) // 2):
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
        if start or abs(value - 1) > CLOSE
    ]
    return f"the rate's schedule (JAX's is {', '.join(texts)})"


def power(q: np.ndarray, r: np.ndarray) -> str:
    """Return the power of torch's rates that JAX's are proportional to, if they are."""
    positive = np.isfinite(q) & np.isfinite(r) & (q > 0) & (r > 0)
    if positive.sum() < LEAST or np.ptp(np.log(q[positive])) < 0.1:
        return ""
    x, y = np.log(q[positive]), np.log(r[positive])
    exponent, constant = np.polyfit(x, y, 1)
    if np.abs(y - exponent * x - constant).max() > CLOSE or exponent < 0.01 or abs(exponent - 1) < 1e-5:
        return ""
    return f"the rate's schedule (JAX's falls as torch's to the power {exponent:.4g})"


def rate_limit(q: np.ndarray, r: np.ndarray) -> str:
    """Return the rate below or above which one schedule does not go, if this is the difference."""
    for name, other, x, y in (("JAX", "torch", q, r), ("torch", "JAX", r, q)):
        for change, extreme, end in (
            (np.maximum, y.min(), f"does not fall below {y.min():.6g}"),
            (np.minimum, y.max(), f"does not rise above {y.max():.6g}"),
        ):
            limited = np.abs(y - extreme) <= CLOSE * np.abs(extreme)
            if 1 < limited.sum() < len(y) and np.allclose(change(x, extreme), y, CLOSE, 0):
                return f"the rate's schedule ({name}'s {end}, {other}'s does)"
    return ""


def other_end(q: np.ndarray, r: np.ndarray) -> str:
    """Return that both schedules have one shape and one beginning, and not one end, if this is so."""
    unequal = np.flatnonzero(np.abs(q - r) > CLOSE * np.abs(q))
    x, y = (rates[unequal[0] if len(unequal) else 0 :] for rates in (q, r))
    if len(x) < LEAST or not np.isfinite([x, y]).all() or np.ptp(x) <= 0.01 * x.max():
        return ""
    if np.ptp(np.diff(x)) <= CLOSE * np.ptp(x):  # two lines may have two lengths
        return ""
    slope, constant = np.polyfit(x, y, 1)
    common = constant / (1 - slope) if slope != 1 else np.inf
    fits = np.abs(slope * x + constant - y).max() <= CLOSE * np.ptp(y)
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
    least = CLOSE * np.abs(x).max(initial=0.0)
    return [i + 2 for i in range(1, len(y)) if y[i - 1] < -least and y[i] > max(least, -2 * y[i - 1])]


def _changes(x: np.ndarray) -> list[int]:
    """Return the updates in which a rate changes."""
    return [int(i) + 2 for i in np.flatnonzero(np.abs(np.diff(x)) > CLOSE * np.abs(x[1:]))]
