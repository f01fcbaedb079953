"""The updates of the elements that a tap samples: a small training by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._loops.changes import changes
from .._loops.explaining import solutions
from .._loops.fitting import EXACT, Fit, fit, misfit
from .._loops.reading import KINDS, settings_of
from .._loops.recipe import USUAL, Recipe
from .matching import MatchedNames
from .run import Table, TappedRun

FLOAT32 = 2e-5
"""The relative error of an update that float32 leaves."""

LEAVES, UPDATES = 3, 12
"""Weights, other parameters and updates of which a recipe is searched first."""

COMMON = ("sgd", "adam")
"""Optimizers that most loops have."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class SampledUpdates:
    """The sampled gradients of each update, the parameters before the first and after each, and settings."""

    gradients: list[Arrays]
    weights: list[Arrays]
    settings: list[Mapping[str, Mapping[str, Any]]]  # of a torch optimizer, by update
    absences: Mapping[str, tuple[bool, ...]]  # whether each update lacks a parameter's gradient

    @property
    def groups(self) -> list[list[int]]:
        return [[i] for i in range(len(self.gradients))]

    def explained(self, unit: float) -> tuple[Recipe, Fit] | None:
        """Return the recipe of a torch optimizer whose settings were tapped, or another, if one fits."""
        tolerance, unit = precision(unit)
        recipe = self._read() or self._searched(tolerance, unit)
        if recipe is None:
            return None
        result = self.fit(recipe, unit)
        return (recipe, _with_common_rates(result)) if result is not None else None

    def fit(self, recipe: Recipe, unit: float) -> Fit | None:
        """Return the rates with which a recipe explains all updates, if it does."""
        result = fit(recipe, self.gradients, self.weights, self.groups, *precision(unit))
        return result if result.complete else None

    def _read(self) -> Recipe | None:
        settings: dict[str, dict[str, Any]] = {}
        for name in self.weights[0]:
            groups = [members.get(name, {}) for members in self.settings]
            if any(group.get("kind") not in KINDS for group in groups):
                return None
            course = [settings_of({k: tuple(x) if isinstance(x, list) else x for k, x in group.items()})
                      for group in groups]  # fmt: skip
            settings[name] = dict(course[0])
            absences = self.absences.get(name, (False,) * len(course))
            if any(absences) or any(x != course[0] for x in course):
                pairs = zip(course, absences, strict=True)
                settings[name]["course"] = tuple({"absent": True} if absent else x for x, absent in pairs)
        kinds = {KINDS[group["kind"]] for members in self.settings for group in members.values()}
        return Recipe(kinds.pop(), settings) if len(kinds) == 1 else None

    def _searched(self, tolerance: float, unit: float) -> Recipe | None:
        """Search for a recipe on a part of the updates, which takes the time of those alone."""
        part = self._part()
        if part is self:
            return self._fitting(tolerance, unit)
        recipe = part._fitting(tolerance, unit)
        if recipe is None:
            return None
        by_kind = {_is_weight(name): dict(settings) for name, settings in recipe.settings.items()}
        usual = next(iter(by_kind.values()))
        settings = {name: by_kind.get(_is_weight(name), usual) for name in self.weights[0]}
        extended = replace(recipe, settings=self._with_courses(settings))
        return extended if self.fit(extended, unit) else self._fitting(tolerance, unit)

    def _part(self) -> SampledUpdates:
        """Return the first updates of the largest weights and the largest other parameters."""
        sizes = {name: float(np.abs(x).max(initial=0.0)) for name, x in self.weights[0].items()}
        chosen: set[str] = set()
        for is_weight in (True, False):
            names = [name for name in sizes if _is_weight(name) == is_weight]
            chosen |= set(sorted(names, key=lambda name: -sizes[name])[:LEAVES])
        if len(chosen) == len(sizes) and len(self.gradients) <= UPDATES:
            return self

        def of(tables: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
            return [{k: x for k, x in table.items() if k in chosen} for table in tables[:count]]

        absences = {k: flags[:UPDATES] for k, flags in self.absences.items() if k in chosen}
        return SampledUpdates(
            of(self.gradients, UPDATES),
            of(self.weights, UPDATES + 1),
            of(self.settings, UPDATES),
            {k: flags for k, flags in absences.items() if any(flags)},
        )

    def _with_courses(self, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return settings with the updates that lack a parameter's gradient."""
        courses = {
            name: tuple({"absent": True} if absent else {} for absent in absences)
            for name, absences in self.absences.items()
        }
        bare = {name: {k: x for k, x in old.items() if k != "course"} for name, old in settings.items()}
        return {
            name: old | ({"course": courses[name]} if name in courses else {}) for name, old in bare.items()
        }

    def _fitting(self, tolerance: float, unit: float) -> Recipe | None:
        """Search for a recipe that makes these updates: the usual ones, and those with a few changes."""
        followed = self.gradients, self.weights, self.groups
        frontier = [
            Recipe(kind, self._with_courses(dict.fromkeys(self.weights[0], usual)))
            for kind, usual in USUAL.items()
        ]
        for _ in range(4):
            for recipe in frontier:
                result = fit(recipe, *followed, tolerance, unit)
                if result.complete and _plausible(result):
                    return recipe
            best = _best_of_kinds(sorted(frontier, key=lambda recipe: misfit(recipe, *followed)))
            frontier = [changed for recipe in best for changed in _varied(recipe)]
            frontier += [changed for _, changed in solutions(best[0], *followed)]
        return None


def _best_of_kinds(ranked: Sequence[Recipe]) -> list[Recipe]:
    """Return the best recipe of SGD, of Adam and of the best other optimizer.

    One optimizer with several wrong settings fits better than the right one with one.
    """
    best: dict[str, Recipe] = {}
    for recipe in ranked:
        best.setdefault(recipe.kind, recipe)
    others = [kind for kind in best if kind not in COMMON][:1]
    return [recipe for kind, recipe in best.items() if kind in (*COMMON, *others)]


def _is_weight(name: str) -> bool:
    return name.endswith(("weight", "kernel", "embedding"))


def precision(unit: float) -> tuple[float, float]:
    """Return the relative error and the rounding up to which a recipe explains an update."""
    return (EXACT, 2.0**-52) if unit < 2.0**-30 else (FLOAT32, unit)


def sampled_updates(
    run: TappedRun, names: MatchedNames, side: int, steps: Sequence[int]
) -> SampledUpdates | None:
    """Return the updates of these steps, by run A's names; None if parameters or gradients are missing."""
    pairs = names.pairs.get("parameters", [])
    translated = [pair for pair in pairs if pair in names.pairs.get("gradients", [])]
    if "parameters" not in run.start.parts or not translated:
        return None
    weights: list[Arrays] = [samples(run.start.parts["parameters"], translated, side)]
    gradients: list[Arrays] = []
    settings: list[Mapping[str, Mapping[str, Any]]] = []
    groups = run.settings
    for k in steps:
        parts = run.steps[k].parts
        if "gradients" not in parts or "parameters" not in parts:
            return None
        weights.append(samples(parts["parameters"], translated, side))
        zeros = {name: np.zeros_like(x) for name, x in weights[0].items()}
        gradients.append(zeros | samples(parts["gradients"], translated, side))
        groups = run.steps[k].settings or groups
        settings.append({pair[0]: groups[pair[side]] for pair in translated if pair[side] in groups})
    absences = {
        pair[0]: tuple(pair[side] not in run.steps[k].parts["gradients"].names for k in steps)
        for pair in translated
    }
    return SampledUpdates(gradients, weights, settings, {k: x for k, x in absences.items() if any(x)})


def samples(table: Table, pairs: list[tuple[str, str]], side: int) -> dict[str, np.ndarray]:
    present = [pair for pair in pairs if pair[side] in table.names]
    rows = table.rows([pair[side] for pair in present]).samples
    return {pair[0]: row for pair, row in zip(present, rows, strict=True)}


def _plausible(result: Fit) -> bool:
    """Whether all parameters have the same rate, as almost every loop has, up to rounding."""
    rates, bounds = (np.array(list(table.values())) for table in (result.rates, result.bounds))
    # Any rate explains updates that vanish, as of a bias before BatchNorm, whose gradient is rounding alone.
    has_effect = np.isfinite(rates) & np.isfinite(bounds)
    lowest = np.where(has_effect, rates + bounds, np.inf).min(0)
    highest = np.where(has_effect, rates - bounds, -np.inf).max(0)
    largest = np.where(has_effect, np.abs(rates), 0.0).max(0)
    return bool((highest - lowest <= 1e-3 * largest).all())


def _with_common_rates(result: Fit) -> Fit:
    """Return the rates, with the most certain one where an update of rounding alone leaves it open."""
    rates, bounds = (np.array(list(table.values())) for table in (result.rates, result.bounds))
    certain = rates[np.where(np.isfinite(rates), bounds, np.inf).argmin(0), np.arange(rates.shape[1])]
    is_open = (bounds > np.abs(certain)) & (np.abs(rates - certain) <= bounds)
    common = np.where(is_open, certain, rates)
    return replace(result, rates=dict(zip(result.rates, common.tolist(), strict=True)))


def _varied(recipe: Recipe) -> Iterator[Recipe]:
    for _, changed in changes(recipe, [[0]]):
        if changed.clip == recipe.clip and changed.factor == recipe.factor:
            yield changed
    if recipe.kind in ("sgd", "rmsprop") and not next(iter(recipe.settings.values()))["momentum"]:
        yield from (recipe.with_settings(momentum=m) for m in (0.9, 0.99, 0.95, 0.5, 0.8))
    # "No decay for biases and norms" is the usual grouping; sampled arrays keep no shape, so names tell.
    for decay in (0.1, 0.01, 1e-4, 5e-4, 0.05):
        settings = {
            name: {**old, "weight_decay": decay if _is_weight(name) else 0.0}
            for name, old in recipe.settings.items()
        }
        yield replace(recipe, settings=settings)
