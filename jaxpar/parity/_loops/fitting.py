"""Fit a recipe to the weights that a loop produced, and solve for the rate of each update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .recipe import Arrays, Recipe, Simulation, Update

EXACT, SINGLE = 1e-9, 2e-6
"""The relative error of one update up to which a recipe explains it. float64 leaves about 1e-13; state in
float32, such as the sums of `optax.MultiSteps` by default, up to about 5e-7."""

DOUBLE = 2.0**-52

Groups = Sequence[Sequence[int]]
"""The batches of each update."""


@dataclass
class Fit:
    """Each parameter that a recipe explains in all updates, and the rates; NaN where a rate has no effect."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    bounds: dict[str, list[float]] = field(default_factory=dict)  # each rate's own rounding error
    complete: bool = False
    explained: int = 0  # updates of parameters


def fit(
    recipe: Recipe,
    batches: Sequence[Arrays],
    weights: Sequence[Arrays],
    groups: Groups,
    tolerance: float = EXACT,
    unit: float = DOUBLE,
) -> Fit:
    """Follow `weights`, rounded to `unit`, and drop parameters whose updates the recipe does not explain."""
    result = Fit({name: [] for name in recipe.settings}, {name: [] for name in recipe.settings})
    simulation = Simulation(recipe)
    with np.errstate(all="ignore"):  # infinite gradients, and roots of differences below 0
        _follow(simulation, result, batches, weights, groups, tolerance, unit)
    result.complete = len(result.rates) == len(recipe.settings)
    return result


def _follow(
    simulation: Simulation,
    result: Fit,
    batches: Sequence[Arrays],
    weights: Sequence[Arrays],
    groups: Groups,
    tolerance: float,
    unit: float,
) -> None:
    for group in groups:
        before, after = weights[group[0]], weights[group[-1] + 1]
        gradients = simulation.entering([batches[i] for i in group])
        if gradients is None:
            zeros = {name: np.zeros_like(x) for name, x in before.items()}
            updates: dict[str, Update] = {name: (x, x) for name, x in zeros.items()}
        else:
            updates = simulation.update(before, gradients)
        for name in list(result.rates):
            change = after[name] - before[name]
            rounding = 8 * unit * float(np.abs(before[name]).max(initial=0.0))
            rate = _rate(change, *updates[name], rounding, tolerance)
            if rate is None:
                del result.rates[name], result.bounds[name]
                continue
            result.rates[name].append(rate[0])
            result.bounds[name].append(rate[1])
            simulation.note_change(name, change)
            result.explained += 1
        if not result.rates:
            return


def _rate(
    change: np.ndarray, constant: np.ndarray | float, slope: np.ndarray, rounding: float, relative: float
) -> tuple[float, float] | None:
    """Return the rate and its error if `change` is constant + rate * slope up to rounding, else None."""
    if not (np.isfinite(change).all() and np.isfinite(slope).all()):
        return (np.nan, np.inf) if np.array_equal(np.isfinite(change), np.isfinite(slope)) else None
    constant = np.broadcast_to(constant, change.shape)
    tolerance = relative * max(np.abs(change).max(initial=0.0), np.abs(constant).max(initial=0.0)) + rounding
    rate, error = _solved(change - constant, slope)
    if error > tolerance:
        return None
    size = np.abs(slope).max(initial=0.0)
    return (rate, tolerance / size) if size > 0 else (np.nan, np.inf)


def _solved(change: np.ndarray, slope: np.ndarray) -> tuple[float, float]:
    """Return the rate of the least squares, and the largest error that it leaves."""
    square = float(np.vdot(slope, slope))
    rate = float(np.vdot(slope, change)) / square if square > 0 else 0.0
    return rate, float(np.abs(change - rate * slope).max(initial=0.0))


def misfit(recipe: Recipe, batches: Sequence[Arrays], weights: Sequence[Arrays], groups: Groups) -> float:
    """Return how badly a recipe explains the updates: the mean square of their errors, each at most 1."""
    simulation, total = Simulation(recipe), []
    with np.errstate(all="ignore"):
        for group in groups:
            before, after = weights[group[0]], weights[group[-1] + 1]
            gradients = simulation.entering([batches[i] for i in group])
            if gradients is None:
                continue
            for name, (constant, slope) in simulation.update(before, gradients).items():
                change = after[name] - before[name]
                error = _solved(change - constant, slope)[1] / np.abs(change).max(initial=1e-300)
                total.append(min(error, 1.0) ** 2 if np.isfinite(error) else 1.0)
                simulation.note_change(name, change)
    return float(np.mean(total)) if total else 1.0
