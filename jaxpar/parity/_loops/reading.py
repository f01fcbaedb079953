"""Read the recipe of torch's loop from the gradients and settings with which its optimizer took steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .fitting import Groups
from .recipe import USUAL, Arrays, Clip, Recipe, Settings, norm
from .runs import Run

KINDS = {
    "SGD": "sgd",
    "Adam": "adam",
    "AdamW": "adam",
    "NAdam": "adam",
    "RAdam": "adam",
    "Adamax": "adamax",
    "RMSprop": "rmsprop",
    "Adagrad": "adagrad",
    "Adadelta": "adadelta",
    "Lion": "lion",
}
KEYS = (
    *("weight_decay", "maximize", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "alpha"),
    *("centered", "initial_accumulator_value", "rho", "momentum_decay"),
)
FORMS = ("norm", "value", "leaf", "parts")
"""Ways to clip, the likeliest first."""
FORMULAS: dict[str, dict[str, Any]] = {
    "NAdam": {"float32_product": True},
    "RAdam": {"rectified": True, "eps_uncorrected": True},
}
"""What an optimizer of torch computes besides its settings."""


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


def torch_recipes(run: Run, batches: Sequence[Arrays], groups: Groups) -> Iterator[Recipe]:
    """Yield the recipes that may explain torch's loop: one, or several if its optimizer is not one of torch.

    Raises:
      Unreadable: optimizers of different kinds, or something else changes the gradients.
    """
    kinds = {group["kind"] for members in run.groups.values() for group in members.values()}
    formulas = {KINDS.get(kind) for kind in kinds}
    if len(formulas) != 1:
        raise Unreadable(f"its optimizers are of different kinds: {', '.join(sorted(kinds))}")
    updates = [(run.groups[end], run.with_gradient[end]) for end in sorted(run.groups)]
    settings = {name: _course(name, updates) for name in run.weights[0]}
    applied = any(not np.isfinite(g).all() for entering in run.entering.values() for g in entering.values())
    (kind,) = formulas
    first = _with_gradients(
        Recipe(kind or "sgd", settings, nonfinite="apply" if applied else "skip"), run, batches, groups
    )
    if kind is not None:
        yield first
    for other, coupled in itertools.product(USUAL if kind is None else (), (False, True)):
        usual = {name: {**USUAL[other], **old} for name, old in first.settings.items()}
        yield replace(first, kind=other, settings=usual).with_settings(coupled=coupled)


def _course(name: str, updates: Sequence[tuple[Mapping[str, Any], Collection[str]]]) -> Settings:
    """Return a parameter's settings in its first update, with the settings of all updates as "course"."""
    changes: list[Settings] = []
    for members, with_gradient in updates:
        absent: Settings = {"frozen": True} if name in with_gradient else {"absent": True}
        changes.append(settings_of(members[name]) if name in members else absent)
    settings = next((x for x in changes if "weight_decay" in x), None)
    if settings is None:
        return {**changes[0], "frozen": True, "coupled": False, "weight_decay": 0.0}
    if all(x == settings for x in changes):
        return settings
    return {**settings, "course": tuple(changes)}


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a torch parameter group, as a recipe has them."""
    settings = {key: group[key] for key in KEYS if key in group}
    kind = group.get("kind")
    coupled = kind != "Lion" and not group.get("decoupled_weight_decay", kind == "AdamW")
    return {"weight_decay": 0.0, **settings, **FORMULAS.get(str(kind), {}), "coupled": coupled}


def _with_gradients(recipe: Recipe, run: Run, batches: Sequence[Arrays], groups: Groups) -> Recipe:
    """Return the recipe with the accumulation, factor and clipping that give the gradients observed."""
    options = []
    for combine in ("mean", "sum", "last"):
        plain = replace(recipe, combine=combine)
        options += list(_gradient_recipes(plain, run, batches, groups))
    if not options:
        raise Unreadable("its gradients are changed by more than accumulation, a factor and clipping")
    return min(
        options,
        key=lambda option: (
            option.factor != 1.0,
            option.clip.limit is not None,
            FORMS.index(option.clip.form),
        ),
    )


def _combined(recipe: Recipe, batches: Sequence[Arrays], group: Sequence[int]) -> Arrays:
    parts = [batches[i] for i in group]
    if recipe.combine == "last":
        return parts[-1]
    total = {name: np.sum([part[name] for part in parts], axis=0) for name in recipe.settings}
    return total if recipe.combine == "sum" else {name: x / len(parts) for name, x in total.items()}


def _gradient_recipes(
    recipe: Recipe, run: Run, batches: Sequence[Arrays], groups: Groups
) -> Iterator[Recipe]:
    updates = list(_updates(recipe, run, batches, groups))
    updates = [(g, x) for g, x in updates if _joined({name: x[name] for name in g}).any()]
    pairs = [(_joined(g), _joined({name: x[name] for name in g})) for g, x in updates]
    ratios = [float(np.vdot(x, g) / np.vdot(x, x)) for g, x in pairs]
    norms = [float(np.linalg.norm(_joined(x))) for _, x in updates]
    if all(_close(g, ratio * x) for (g, x), ratio in zip(pairs, ratios, strict=True)):
        factor = max(ratios)
        factor = 1.0 if abs(factor - 1) < 1e-12 else factor
        if all(ratio >= factor * (1 - 1e-12) for ratio in ratios):
            yield replace(recipe, factor=factor)
        for eps, scale in itertools.product((1e-6, 0.0), (factor, 1.0)):
            limit = _limit(ratios, norms, eps, scale, factor)
            if limit:
                yield replace(recipe, factor=scale, clip=Clip(limit, "norm", eps))
    limit = max((float(np.abs(g).max()) for g, _ in pairs), default=0.0)
    if limit and all(_close(g, np.clip(x, -limit, limit)) for g, x in pairs):
        yield replace(recipe, clip=Clip(limit, "value"))
    yield from _clips_of_parts(recipe, updates)


def _updates(
    recipe: Recipe, run: Run, batches: Sequence[Arrays], groups: Groups
) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield the gradients that entered each update, and its batches' gradients, where both are finite.

    The latter include parameters that have a gradient and no optimizer, which clipping may count.
    """
    for group in groups:
        if group[-1] in run.entering:
            entering = run.entering[group[-1]]
            combined = _combined(recipe, batches, group)
            with_gradient = run.with_gradient[group[-1]]
            pair = entering, {name: x for name, x in combined.items() if name in with_gradient}
            if all(np.isfinite(x).all() for arrays in pair for x in arrays.values()):
                yield pair


def _joined(arrays: Arrays) -> np.ndarray:
    return np.concatenate([x.ravel() for x in arrays.values()])


def _limit(
    ratios: Sequence[float], norms: Sequence[float], eps: float, scale: float, factor: float = 1.0
) -> float | None:
    """Return the norm's limit that makes these ratios of clipped to unclipped gradients, if one does."""
    clipped = [i for i, ratio in enumerate(ratios) if ratio < factor * (1 - 1e-12)]
    limits = [ratio / scale * (scale * norm + eps) for ratio, norm in zip(ratios, norms, strict=True)]
    # Where every update is clipped, any factor goes with some limit.
    used = [limits[i] for i in clipped] if scale == factor else limits
    if used and max(used) - min(used) <= 1e-11 * max(used) and (clipped or scale != factor):
        return float(f"{used[0]:.12g}")
    return None


def _clips_of_parts(recipe: Recipe, updates: Sequence[tuple[Arrays, Arrays]]) -> Iterator[Recipe]:
    """Yield the recipe with arrays clipped in several parts, each of arrays with equal ratios."""
    ratios: dict[str, tuple[float, ...]] = {}
    for name in recipe.settings:
        pairs = [(g[name], x[name]) if name in g else (np.ones(1), np.ones(1)) for g, x in updates]
        ratios[name] = tuple(float(np.vdot(x, g)) / max(float(np.vdot(x, x)), 1e-300) for g, x in pairs)
        if not all(_close(g, ratio * x) for (g, x), ratio in zip(pairs, ratios[name], strict=True)):
            return
    parts: list[list[str]] = []
    for name, column in ratios.items():
        same = (part for part in parts if np.allclose(column, ratios[part[0]], rtol=1e-11, atol=0))
        part = next(same, None)
        parts.append([name]) if part is None else part.append(name)
    for eps in (1e-6, 0.0):
        limits = [
            _limit(ratios[part[0]], [norm(x[n] for n in part if n in x) for _, x in updates], eps, 1.0)
            for part in parts
        ]
        distinct = {limit for limit in limits if limit is not None}
        if len(distinct) == 1:
            form = "leaf" if all(len(part) == 1 for part in parts) else "parts"
            clipped = tuple(tuple(p) for p, limit in zip(parts, limits, strict=True) if limit is not None)
            yield replace(recipe, clip=Clip(distinct.pop(), form, eps, parts=clipped))


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.abs(x - y).max(initial=0.0) <= 1e-12 * np.abs(y).max(initial=0.0))
