"""Explain how averaged parameters (EMA, SWA) follow from the parameters of the same loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .fitting import DOUBLE
from .recipe import Arrays
from .runs import Run

SOURCES = {
    "after": "the parameters after the update",
    "before": "the parameters before the update",
}
NEAR, VAGUE = 1e-9, 1e-3
"""Relative errors: of an average that a decay explains, and of a decay that is too uncertain to report."""


@dataclass(frozen=True)
class Averaging:
    """How an average is made: its decay at each batch, 1 where it stays as it is and 0 where it is copied."""

    source: str
    debiased: bool
    decays: tuple[float, ...]
    errors: tuple[float, ...]  # of the decays, by rounding

    def __str__(self) -> str:
        form = " divided by 1 - decay**n" if self.debiased else ""
        return f"an average{form} of {SOURCES[self.source]}, {_described(self.decays)}"


def averagings(averages: Sequence[Any], run: Run, unit: float = DOUBLE) -> list[Averaging]:
    """Return the ways to make the averages from the run's weights, the debiased ones if no others fit."""
    # A decay close to 1 makes the debiased form far smaller than the weights, so that almost anything fits.
    candidates = list(_averagings(averages, run, unit))
    return [averaging for averaging in candidates if not averaging.debiased] or candidates


def _averagings(averages: Sequence[Any], run: Run, unit: float) -> Iterator[Averaging]:
    for source in SOURCES:
        shift = 1 if source == "after" else 0
        weights = [run.weights[i + shift] for i in range(len(averages))]
        solved = _decays(averages, weights, run.weights[0], unit)
        if solved is not None:
            yield Averaging(source, False, *solved)
        for decay in (0.9, 0.99, 0.999, 0.9999, 0.995, 0.5):
            raw = [_scaled(x, 1 - decay ** (i + 1)) for i, x in enumerate(averages)]
            solved = _decays(raw, weights, {name: np.zeros_like(x) for name, x in weights[0].items()}, unit)
            if solved is not None and np.allclose(solved[0], decay, rtol=NEAR):
                yield Averaging(source, True, (decay,) * len(averages), solved[1])


def _scaled(arrays: Arrays | None, factor: float) -> Arrays | None:
    return None if arrays is None else {name: factor * x for name, x in arrays.items()}


def _decays(
    averages: Sequence[Arrays | None], weights: Sequence[Arrays], start: Arrays, unit: float
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return d with average = d * previous + (1 - d) * weights for each batch, and its errors; or None."""
    decays, errors, previous = [], [], _flat(start)
    for average, weight in zip(averages, weights, strict=True):
        if average is None or average.keys() != weight.keys():
            return None
        x, w = _flat(average), _flat(weight)
        direction = previous - w
        square = float(direction @ direction)
        rounding = 16 * unit * np.abs(w).max()
        decay = float(direction @ (x - w)) / square if square > 0 else 0.0
        if np.abs(x - w - decay * direction).max() > NEAR * np.abs(x - w).max() + rounding:
            return None
        # Roundings are independent, so that they nearly cancel in the sum that gives the decay.
        error = rounding / max(square**0.5, 1e-300)
        decays.append(round(decay, 9) if error < VAGUE else np.nan)
        errors.append(error)
        previous = x
    return tuple(decays), tuple(errors)


def _flat(arrays: Arrays) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays)])


def same(x: Averaging, y: Averaging) -> bool:
    columns = zip(x.decays, y.decays, x.errors, y.errors, strict=True)
    equal = all(
        np.isnan(a) or np.isnan(b) or abs(a - b) <= 1e-6 * (1 - min(a, b)) + 1e-8 + a_error + b_error
        for a, b, a_error, b_error in columns
    )
    return x.source == y.source and x.debiased == y.debiased and equal


def _described(decays: Sequence[float]) -> str:
    certain = [x for x in decays if np.isfinite(x)]
    copies = sum(abs(x) < 1e-8 for x in certain)
    pauses = sum(abs(x - 1) < 1e-8 for x in certain)
    moving = [x for x in certain if 1e-8 < abs(x) < 1 - 1e-8]
    if moving and max(moving) - min(moving) <= 1e-6:
        text = f"decay {moving[-1]:g}"
    elif moving:
        text = f"decays {moving[0]:.4g}, {moving[1]:.4g} to {certain[-1]:.4g}"
    else:
        text = "without decay"
    if copies:
        first = next(i for i, x in enumerate(decays, 1) if abs(x) < 1e-8)
        text += f", copied {copies} times (first after batch {first})"
    return text + (f", left alone in {pauses} of {len(decays)} batches" if pauses else "")


def average_cause(
    torch_averages: Sequence[Any], torch: Run, jax_averages: Sequence[Any], jax: Run, unit: float = DOUBLE
) -> str | None:
    """Return how the two averages are made; "" if both in the same way, None if one is unknown."""
    torchs, jaxs = averagings(torch_averages, torch, unit), averagings(jax_averages, jax, unit)
    if not torchs or not jaxs:
        return None
    if any(same(x, y) for x in torchs for y in jaxs):
        return ""
    return f"torch's is {torchs[0]} (JAX's is {jaxs[0]})"
