"""Solve for the value of one setting that fits JAX's updates, where none of the usual values does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar

from .changes import Change
from .fitting import Groups, misfit
from .recipe import Arrays, Recipe

DECAYS, EPSILONS, FROM_ONE = np.logspace(-6, 0, 13), np.logspace(-12, -1, 12), np.logspace(-4, -0.05, 12)
DIGITS = (1, 2, 3, 4, 5)
"""People write values with few digits; a solution is rounded to the fewest that fit."""

Make = Callable[[float], Recipe]


def solutions(
    recipe: Recipe, batches: Sequence[Arrays], weights: Sequence[Arrays], groups: Groups
) -> Iterator[Change]:
    """Yield recipes with the best value of one setting each, rounded to each number of digits."""
    for name, torch_value, grid, from_one, make in _settings(recipe):

        def error(exponent: float, make: Make = make, from_one: bool = from_one) -> float:
            return misfit(make(_value(exponent, from_one)), batches, weights, groups)

        exponents = np.log10(grid)
        start = int(np.argmin([error(x) for x in exponents]))
        bounds = exponents[max(start - 1, 0)], exponents[min(start + 1, len(exponents) - 1)]
        best = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-7})
        for digits in DIGITS:
            size = float(f"{10**best.x:.{digits - 1}e}")
            value = float(f"{1 - size:.12g}") if from_one else size
            yield f"torch's {name} is {torch_value:g} (JAX acts as with {value:g})", make(value)


def _value(exponent: float, from_one: bool) -> float:
    return 1 - 10**exponent if from_one else 10**exponent


def _settings(recipe: Recipe) -> Iterator[tuple[str, float, np.ndarray, bool, Make]]:
    trained = [settings for settings in recipe.settings.values() if not settings.get("frozen")]
    first = trained[0] if trained else {}
    decay = max((settings["weight_decay"] for settings in trained), default=0.0)
    if trained:
        yield "weight_decay", decay, DECAYS, False, lambda x: _decaying(recipe, x)
    if "eps" in first:
        yield "eps", first["eps"], EPSILONS, False, lambda x: recipe.with_settings(eps=x)
    for name in ("momentum", "alpha", "rho"):
        if first.get(name):
            yield name, first[name], FROM_ONE, True, partial(_with_setting, recipe, name)
    if "betas" in first:
        b1, b2 = first["betas"]
        yield "beta1", b1, FROM_ONE, True, lambda x: recipe.with_settings(betas=(x, b2))
        yield "beta2", b2, FROM_ONE, True, lambda x: recipe.with_settings(betas=(b1, x))
    if recipe.clip.limit is not None:
        limit = recipe.clip.limit
        grid = limit * np.logspace(-2, 2, 15)
        clip = recipe.clip
        yield "clipping limit", limit, grid, False, lambda x: replace(recipe, clip=replace(clip, limit=x))


def _with_setting(recipe: Recipe, name: str, value: float) -> Recipe:
    return recipe.with_settings(**{name: value})


def _decaying(recipe: Recipe, value: float) -> Recipe:
    """Return the recipe with this weight decay for the parameters that decay; for all, if none does."""
    some = any(settings["weight_decay"] for settings in recipe.settings.values())
    settings = {
        name: {**old, "weight_decay": value} if old["weight_decay"] or not some else old
        for name, old in recipe.settings.items()
    }
    return replace(recipe, settings=settings)
