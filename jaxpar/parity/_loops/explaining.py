"""Search for the fewest changes of torch's loop with which it computes JAX's updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar

from .changes import Change, changes, jax_groups_of, regroupings
from .fitting import DOUBLE, Fit, Groups, fit, misfit
from .rates import Rates, equal_rates, first_rates, rate_changes
from .recipe import Arrays, Recipe

DECAYS, EPSILONS, FROM_ONE = np.logspace(-6, 0, 13), np.logspace(-12, -1, 12), np.logspace(-4, -0.05, 12)
DIGITS = (1, 2, 3, 4, 5)
"""People write values with few digits; a solution is rounded to the fewest that fit."""
Make = Callable[[float], Recipe]

SETTING = re.compile(
    r"(.*\(JAX (?:acts as with|subtracts) )(.*?)((?: times the weights at any rate)?\)(?:, for [^()]*)?)"
)
FACTOR = "gradients are as they are (JAX's are multiplied by"
"""What sentences about a factor of gradients have in common."""
DEPTH, WIDTH, SOLVED = 3, 8, 2
"""At most `DEPTH` changes at once. The best `WIDTH` first changes are combined with a second, and the best
`SOLVED` with a setting whose value is solved for."""


@dataclass(frozen=True)
class Attempt:
    """A recipe with some changes, and how far it explains JAX's loop."""

    texts: tuple[str, ...]
    recipe: Recipe
    groups: Groups
    fit: Fit


@dataclass(frozen=True)
class Explainer:
    """JAX's weights before the first batch and after each one, and torch's rates by update."""

    batches: Sequence[Arrays]
    weights: Sequence[Arrays]
    rates: Rates
    tolerance: float  # EXACT or SINGLE
    unit: float = DOUBLE  # of rounding in the weights

    def of(self, names: Sequence[str]) -> Explainer:
        """Return the part of these parameters."""
        batches, weights = ([{k: x[k] for k in names} for x in y] for y in (self.batches, self.weights))
        rates = {name: self.rates[name] for name in names}
        return Explainer(batches, weights, rates, self.tolerance, self.unit)

    def same(self, recipe: Recipe, groups: Groups) -> bool:
        """Whether JAX's updates are this recipe's, with torch's rates."""
        result = self._fit(recipe, groups)
        return result.complete and equal_rates(self.rates, result, result.rates)

    def _fit(self, recipe: Recipe, groups: Groups) -> Fit:
        return fit(recipe, self.batches, self.weights, groups, self.tolerance, self.unit)

    def causes(self, recipe: Recipe, groups: Groups, depth: int = DEPTH) -> tuple[str, ...]:
        """Return the shortest explanations as sentences: alternatives that give the same updates."""
        plain = Attempt((), recipe, groups, self._fit(recipe, groups))
        ranked = list(self._explanations(plain, None))
        frontier = [plain]
        for count in range(1, depth + 1):
            if min((rank for rank, _ in ranked), default=DEPTH + 2) < count:
                break
            attempts = []
            for parent in frontier:
                for attempt in self._changed(parent):
                    ranked += self._explanations(attempt, parent)
                    attempts.append(attempt)
            if min((rank for rank, _ in ranked), default=DEPTH + 2) > count:
                for parent in frontier[: SOLVED // count]:
                    for attempt in self._solved(parent):
                        ranked += self._explanations(attempt, parent)
                        attempts.append(attempt)
            frontier = sorted(attempts, key=lambda attempt: -attempt.fit.explained)[:WIDTH]
        best = min((rank for rank, _ in ranked), default=0)
        return _together([text for rank, text in ranked if rank == best])

    def complete(self, recipe: Recipe, groups: Groups, depth: int = 2) -> Attempt | None:
        """Return the recipe with the fewest changes that explains the weights at any rates, if one does."""
        frontier = [Attempt((), recipe, groups, self._fit(recipe, groups))]
        for _ in range(depth):
            attempts = []
            for attempt in self._next(frontier):
                if attempt.fit.complete:
                    return attempt
                attempts.append(attempt)
            frontier = sorted(attempts, key=lambda attempt: -attempt.fit.explained)[:WIDTH]
        return None

    def _next(self, parents: list[Attempt]) -> Iterator[Attempt]:
        """Yield attempts with one change more, and after them those that solve for a setting of the best."""
        for parent in parents:
            yield from self._changed(parent)
        yield from self._solved(parents[0])

    def _changed(self, parent: Attempt) -> Iterator[Attempt]:
        options = [(text, recipe, parent.groups) for text, recipe in changes(parent.recipe, parent.groups)]
        jax_groups = jax_groups_of(self.weights, self.batches)
        if jax_groups and jax_groups != parent.groups:
            options += regroupings(parent.recipe, parent.groups, jax_groups)
        for text, recipe, groups in options:
            yield Attempt((*parent.texts, text), recipe, groups, self._fit(recipe, groups))

    def _solved(self, parent: Attempt) -> Iterator[Attempt]:
        vary = any(np.ptp([x for x in rates if np.isfinite(x)] or [0.0]) > 0 for rates in self.rates.values())
        for text, recipe in solutions(parent.recipe, self.batches, self.weights, parent.groups, vary):
            yield Attempt((*parent.texts, text), recipe, parent.groups, self._fit(recipe, parent.groups))

    def _explanations(self, attempt: Attempt, parent: Attempt | None) -> Iterator[tuple[int, str]]:
        """Yield the number of causes and their sentence, if the attempt explains every parameter."""
        texts = attempt.texts
        if attempt.fit.complete:
            sentences = rate_changes(self.rates, attempt.fit)
            if sentences is None:  # without a name: worth more than one change
                yield len(texts) + 3, _joined(*texts, first_rates(self.rates, attempt.fit))
            elif texts or sentences:
                # A factor of the gradients with the inverse one of the rate is an accident of large factors.
                accident = attempt.recipe.factor != 1.0 and any(
                    "times as large" in text for text in sentences
                )
                yield len(texts) + (3 if accident else len(sentences)), _joined(*texts, *sentences)
        elif parent is not None:
            names = set(attempt.recipe.settings)
            same, explained = (
                {name for name in result.rates if equal_rates(self.rates, result, [name])}
                for result in (parent.fit, attempt.fit)
            )
            different = names - same
            if same and different and different <= explained:
                leaves = ", ".join(name for name in attempt.recipe.settings if name in different)
                yield len(texts), _joined(*texts[:-1], f"{texts[-1]}, for {leaves}")


def _together(texts: Sequence[str]) -> tuple[str, ...]:
    """Return alternatives once, and all values of one setting in one sentence.

    A factor of the gradients does what another eps does; where both explain the updates, eps is likelier.
    """
    values: dict[tuple[str, str], list[str]] = {}
    for text in dict.fromkeys(texts):
        match = SETTING.fullmatch(text)
        start, value, end = match.groups() if match else (text, "", "")
        values.setdefault((start, end), []).append(value)
    sentences = [f"{start}{' or '.join(options)}{end}" for (start, end), options in values.items()]
    likelier = [text for text in sentences if FACTOR not in text]
    return tuple(likelier or sentences)


def _joined(*texts: str) -> str:
    return "; and ".join(texts)


def solutions(
    recipe: Recipe,
    batches: Sequence[Arrays],
    weights: Sequence[Arrays],
    groups: Groups,
    rates_vary: bool = False,
) -> Iterator[Change]:
    """Yield recipes with the best value of one setting each, rounded to each number of digits.

    Only rates that vary show whether a decay follows them.
    """
    for torch_has, jax_acts, grid, from_one, make in _settings(recipe, rates_vary):

        def error(exponent: float, make: Make = make, from_one: bool = from_one) -> float:
            return misfit(make(_value(exponent, from_one)), batches, weights, groups)

        exponents = np.log10(grid)
        start = int(np.argmin([error(x) for x in exponents]))
        bounds = exponents[max(start - 1, 0)], exponents[min(start + 1, len(exponents) - 1)]
        best = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-7})
        for digits in DIGITS:
            size = float(f"{10**best.x:.{digits - 1}e}")
            value = float(f"{1 - size:.12g}") if from_one else size
            yield f"torch's {torch_has} (JAX {jax_acts.format(f'{value:g}')})", make(value)


def _value(exponent: float, from_one: bool) -> float:
    return 1 - 10**exponent if from_one else 10**exponent


def _settings(recipe: Recipe, rates_vary: bool) -> Iterator[tuple[str, str, np.ndarray, bool, Make]]:
    """Yield what torch has, what JAX does instead, the values tried first, and the recipe of a value."""
    trained = [settings for settings in recipe.settings.values() if not settings.get("frozen")]
    first = trained[0] if trained else {}
    decay = max((settings["weight_decay"] for settings in trained), default=0.0)
    usual = "acts as with {}"
    if trained:
        yield f"weight_decay is {decay:g}", usual, DECAYS, False, lambda x: _decaying(recipe, x)
    if rates_vary and decay and not first["coupled"]:
        constant = recipe.with_settings(decay_without_rate=True)
        text = "decoupled decay is multiplied by the rate"
        yield text, "subtracts {} times the weights at any rate", DECAYS, False, partial(_decaying, constant)
    if "eps" in first:
        yield f"eps is {first['eps']:g}", usual, EPSILONS, False, lambda x: recipe.with_settings(eps=x)
    for name in ("momentum", "alpha", "rho"):
        if first.get(name):
            yield f"{name} is {first[name]:g}", usual, FROM_ONE, True, partial(_with_setting, recipe, name)
    if "betas" in first:
        b1, b2 = first["betas"]
        yield f"beta1 is {b1:g}", usual, FROM_ONE, True, lambda x: recipe.with_settings(betas=(x, b2))
        yield f"beta2 is {b2:g}", usual, FROM_ONE, True, lambda x: recipe.with_settings(betas=(b1, x))
    if recipe.clip.limit is not None:
        clip, limit = recipe.clip, recipe.clip.limit
        grid = limit * np.logspace(-2, 2, 15)
        text = f"clipping limit is {limit:g}"
        yield text, usual, grid, False, lambda x: replace(recipe, clip=replace(clip, limit=x))


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
