"""Read the recipe of torch's loop from the gradients and settings with which its optimizer took steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .fitting import Groups
from .recipe import Arrays, Clip, Recipe
from .runs import Run

KINDS = {
    "SGD": "sgd",
    "Adam": "adam",
    "AdamW": "adam",
    "RMSprop": "rmsprop",
    "Adagrad": "adagrad",
    "Adadelta": "adadelta",
}
KEYS = (
    *("weight_decay", "maximize", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "alpha"),
    *("centered", "initial_accumulator_value", "rho"),
)


class Unreadable(Exception):
    """No recipe describes torch's loop; the text is the reason."""


def torch_groups(run: Run, batches: Sequence[Arrays]) -> Groups:
    """Return the batches of each update, skipped updates included."""
    ends = sorted(run.entering)
    if not ends:
        raise Unreadable("its optimizer took no step")
    return groups_of(ends, batches)


def groups_of(ends: Sequence[int], batches: Sequence[Arrays]) -> Groups:
    """Return the batches of each update; updates end with the batches `ends`, or are skipped."""
    starts = [0, *(end + 1 for end in ends)]
    groups = [list(range(start, end + 1)) for start, end in zip(starts, ends, strict=False)]
    length = Counter(len(group) for group in groups).most_common(1)[0][0] if groups else 1
    return [part for group in groups for part in _parts(group, length, batches)]


def _parts(group: list[int], length: int, batches: Sequence[Arrays]) -> Iterator[list[int]]:
    """Divide a group in which an update with infinite gradients was skipped."""
    skipped = any(not np.isfinite(g).all() for i in group[:-length] for g in batches[i].values())
    if len(group) % length or not skipped:
        yield group
        return
    for start in range(0, len(group), length):
        yield group[start : start + length]


def torch_rates(run: Run, groups: Groups) -> dict[str, list[float]]:
    """Return each parameter's rate in each update; NaN where the update was skipped."""
    names = list(run.weights[0])
    return {
        name: [float(run.groups.get(group[-1], {}).get(name, {}).get("lr", np.nan)) for group in groups]
        for name in names
    }


def torch_recipe(run: Run, batches: Sequence[Arrays], groups: Groups) -> Recipe:
    """Return the recipe that explains torch's loop.

    Raises:
      Unreadable: the optimizer has no formula here, its settings change, or something else changes the
        gradients.
    """
    settings = [
        {name: settings_of(group) for name, group in run.groups[end].items()} for end in sorted(run.groups)
    ]
    if any(other != settings[0] for other in settings[1:]):
        raise Unreadable("its optimizer's settings besides the rate change during the training")
    kinds = {values.pop("kind") for values in settings[0].values()}
    if len(kinds) != 1 or not kinds <= KINDS.keys():
        raise Unreadable(f"{', '.join(sorted(kinds))} has no formula here")
    frozen = {name: {"frozen": True, "coupled": False, "weight_decay": 0.0} for name in run.weights[0]}
    applied = any(not np.isfinite(g).all() for entering in run.entering.values() for g in entering.values())
    nonfinite = "apply" if applied else "skip"
    recipe = Recipe(KINDS[kinds.pop()], {**frozen, **settings[0]}, nonfinite=nonfinite)
    return _with_gradients(recipe, run, batches, groups)


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: group[key] for key in KEYS if key in group}
    coupled = not group.get("decoupled_weight_decay", False)
    return {**settings, "coupled": coupled, "kind": group["kind"]}


def _with_gradients(recipe: Recipe, run: Run, batches: Sequence[Arrays], groups: Groups) -> Recipe:
    """Return the recipe with the accumulation, factor and clipping that give the gradients observed."""
    options = []
    for combine in ("mean", "sum", "last"):
        plain = replace(recipe, combine=combine)
        options += list(_gradient_recipes(plain, run, batches, groups))
    if not options:
        raise Unreadable("its gradients are changed by more than accumulation, a factor and clipping")
    return min(options, key=lambda option: (option.factor != 1.0, option.clip.limit is not None))


def _combined(recipe: Recipe, batches: Sequence[Arrays], group: Sequence[int]) -> Arrays:
    parts = [batches[i] for i in group]
    if recipe.combine == "last":
        return parts[-1]
    total = {name: np.sum([part[name] for part in parts], axis=0) for name in recipe.settings}
    return total if recipe.combine == "sum" else {name: x / len(parts) for name, x in total.items()}


def _gradient_recipes(
    recipe: Recipe, run: Run, batches: Sequence[Arrays], groups: Groups
) -> Iterator[Recipe]:
    updates = []
    for group in groups:
        if group[-1] in run.entering:
            entering = run.entering[group[-1]]
            combined = _combined(recipe, batches, group)
            both = [np.concatenate([x[name].ravel() for name in entering]) for x in (entering, combined)]
            if all(np.isfinite(x).all() for x in both):
                updates.append(both)
    ratios = [float(np.vdot(x, g) / np.vdot(x, x)) for g, x in updates if x.any()]
    norms = [float(np.linalg.norm(x)) for _, x in updates if x.any()]
    pairs = [(g, x) for g, x in updates if x.any()]
    if all(_close(g, ratio * x) for (g, x), ratio in zip(pairs, ratios, strict=True)):
        factor = max(ratios)
        factor = 1.0 if abs(factor - 1) < 1e-12 else factor
        clipped = [i for i, ratio in enumerate(ratios) if ratio < factor * (1 - 1e-12)]
        if not clipped:
            yield replace(recipe, factor=factor)
        for eps, scale in itertools.product((1e-6, 0.0), (factor, 1.0)):
            limits = [ratio / scale * (scale * norm + eps) for ratio, norm in zip(ratios, norms, strict=True)]
            # Where every update is clipped, any factor goes with some limit.
            used = [limits[i] for i in clipped] if scale == factor else limits
            if used and max(used) - min(used) <= 1e-11 * max(used) and (clipped or scale != factor):
                yield replace(recipe, factor=scale, clip=Clip(float(f"{used[0]:.12g}"), "norm", eps))
    limit = max((float(np.abs(g).max()) for g, _ in pairs), default=0.0)
    if limit and all(_close(g, np.clip(x, -limit, limit)) for g, x in pairs):
        yield replace(recipe, clip=Clip(limit, "value"))


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.abs(x - y).max(initial=0.0) <= 1e-12 * np.abs(y).max(initial=0.0))
