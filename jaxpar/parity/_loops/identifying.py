"""Find the recipe of a loop, and prove it: a recipe counts only if it computes the loop's own updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .chains import chain_recipe
from .changes import jax_groups_of
from .explaining import Explainer
from .fitting import EXACT, SINGLE, Groups, fit
from .rates import Rates, rate_changes
from .reading import KINDS, Unreadable, torch_groups, torch_rates, torch_recipes
from .recipe import USUAL, Arrays, Recipe
from .runs import Run, nested


@dataclass(frozen=True)
class Identified:
    """A loop's recipe, the batches of each update, each array's rates, and up to which error it is proven."""

    recipe: Recipe
    groups: Groups
    rates: Rates
    tolerance: float = EXACT


def torch_known(run: Run, batches: Sequence[Arrays]) -> Identified:
    """Read torch's recipe from its optimizer's settings and from the gradients that entered it."""
    groups = torch_groups(run, batches)
    rates = torch_rates(run, groups)
    for recipe in torch_recipes(run, batches, groups):
        result = fit(recipe, batches, run.weights, groups)
        if result.complete and rate_changes(rates, result) == ():
            return Identified(recipe, groups, rates)
    kinds = {group["kind"] for members in run.groups.values() for group in members.values()}
    if not kinds <= KINDS.keys():
        raise Unreadable(f"{', '.join(sorted(kinds))} has no formula here")
    raise Unreadable("its updates are not what its optimizer's formula gives")


def jax_known(run: Run, batches: Sequence[Arrays]) -> Identified:
    """Read JAX's recipe from its optax chain; rates, and changes that the loop makes, are solved for."""
    reasons, starts = list[str](), list[tuple[Recipe, Groups]]()
    weights = run.weights[0]
    for tx in run.transformations:
        try:
            recipe, every = chain_recipe(tx, nested(weights, {}), {name: name for name in weights}, weights)
        except Unreadable as error:
            reasons.append(str(error))
        else:
            starts += [(recipe, groups) for groups in _groupings(run, batches, every)]
    if not run.transformations:
        sgd = Recipe("sgd", dict.fromkeys(weights, USUAL["sgd"]))
        starts += [(sgd, groups) for groups in _groupings(run, batches, 1)]
    for tolerance in (EXACT, SINGLE):
        for recipe, groups in (*starts, *_changed(starts, run, batches, tolerance)):
            result = fit(recipe, batches, run.weights, groups, tolerance)
            if result.complete:
                return Identified(recipe, groups, result.rates, tolerance)
    raise Unreadable(reasons[0] if reasons else "its updates are not what its optimizer's formula gives")


def _groupings(run: Run, batches: Sequence[Arrays], every: int) -> Iterator[Groups]:
    count = len(batches) // every * every
    chunks = [list(range(start, start + every)) for start in range(0, count, every)]
    yield chunks
    if (observed := jax_groups_of(run.weights, batches)) and observed != chunks:
        yield observed


def _changed(
    starts: Sequence[tuple[Recipe, Groups]], run: Run, batches: Sequence[Arrays], tolerance: float
) -> Iterator[tuple[Recipe, Groups]]:
    """Yield recipes that a loop makes of its chain's, by clipping, scaling or accumulating by itself."""
    explainer = Explainer(batches, run.weights, {}, tolerance)
    for recipe, groups in starts:
        if (attempt := explainer.complete(recipe, groups)) is not None:
            yield attempt.recipe, attempt.groups
