"""Name why parameters differ after equal gradients, and why running statistics or the optimizer's state do.

Sampled elements are a small training by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .._loops.changes import changes
from .._loops.explaining import Explainer
from .._loops.fitting import EXACT, Fit, fit, misfit
from .._loops.rates import rate_changes
from .._loops.reading import KEYS, KINDS
from .._loops.recipe import USUAL, Recipe
from .._loops.solving import solutions
from .._loops.wording import renamed
from .matching import Aligned
from .passes import Scene, cast_causes, listed, mode_causes, unchanged
from .run import TappedRun

STEPS = 48
"""At most so many updates are searched for an explanation."""

FLOAT32 = 2e-5
"""The relative error of an update that float32 leaves."""

RUNS = ("run A", "run B")
"""What sentences of `compare_loops` have for torch and for JAX."""

VARIANCES = ("var", "running_var")

Arrays = Mapping[str, np.ndarray]


def rate_causes(scene: Scene) -> list[str]:
    """Name how the schedules differ."""
    runs = [
        [list(run.steps[k].numbers.get("rate", {}).values()) for k in scene.walk.steps]
        for run in (scene.a, scene.b)
    ]
    x, y = ([float(np.max(rates)) if rates else np.nan for rates in run] for run in runs)
    if len(y) > 2 and len(set(y)) == 1 and len(set(x)) > 1 and y[0] != x[0]:
        return [f"the rate's schedule (run B's rate stays constant, {y[0]:g})"]
    result = Fit({"rate": y}, {"rate": [1e-8 * abs(rate) for rate in y]})
    sentences = rate_changes({"rate": x}, result)
    return [renamed(text, *RUNS) for text in sentences or ()]


def update_causes(scene: Scene) -> list[str]:
    """Name why parameters differ after the same gradients: the optimizer, its settings, frozen arrays."""
    # First, because a small type leaves parameters as they are whose updates it rounds away.
    if causes := list(cast_causes(scene, ("parameters",))):
        return causes
    still = [unchanged(run, "parameters") for run in (scene.a, scene.b)]
    pairs = scene.names.pairs.get("parameters", [])
    for side, name in enumerate("AB"):
        frozen = [
            pair[0] for pair in pairs if pair[side] in still[side] and pair[1 - side] not in still[1 - side]
        ]
        if frozen and len(frozen) < len(pairs):
            return [f"{listed(frozen)} never changes in run {name}: frozen, or not given to the optimizer"]
        if frozen:
            return [f"no parameter changes in run {name}"]
    if cause := _skipped(scene):
        return [cause]
    return setting_causes(scene)


def setting_causes(scene: Scene) -> list[str]:
    """Name the optimizer's settings that differ: as torch has them, or as the updates show them."""
    return _different_settings(scene) or _recipes(scene)


def _skipped(scene: Scene) -> str:
    """Return that one run makes no update in this step, if it does not."""
    after = scene.aligned("parameters")
    before = scene.before()
    if not before or before.names != after.names:
        return ""
    moved = [bool((x.values != y.values).any()) for x, y in ((before.a, after.a), (before.b, after.b))]
    if moved[0] == moved[1]:
        return ""
    return f"run {'B' if moved[0] else 'A'} makes no update in step {scene.step}: it skips or accumulates"


def _different_settings(scene: Scene) -> list[str]:
    """Name settings of two torch optimizers that differ."""
    texts: dict[str, list[str]] = {}
    for x, y in scene.names.pairs.get("parameters", []):
        one, other = scene.a.settings.get(x), scene.b.settings.get(y)
        if one is None or other is None:
            continue
        for key in one.keys() & other.keys() - {"lr", "initial_lr", "foreach", "fused"}:
            if one[key] != other[key]:
                label = "optimizer" if key == "kind" else key
                texts.setdefault(f"{label} is {one[key]} in run A and {other[key]} in run B", []).append(x)
    count = len(scene.names.pairs.get("parameters", []))
    return [
        text if len(leaves) == count else f"{text}, for {listed(leaves)}" for text, leaves in texts.items()
    ]


def _recipes(scene: Scene) -> list[str]:
    trajectories = [_trajectory(scene, side) for side in (0, 1)]
    if trajectories[0] is None or trajectories[1] is None:
        return []
    (gradients, weights), (other_gradients, other_weights) = trajectories[0], trajectories[1]
    groups = [[i] for i in range(len(gradients))]
    tolerance, unit = (EXACT, 2.0**-52) if scene.walk.unit < 2.0**-30 else (FLOAT32, scene.walk.unit)
    recipe = _read(scene.a, list(weights[0])) or _fitting(gradients, weights, tolerance, unit)
    if recipe is None:
        return []
    rates = fit(recipe, gradients, weights, groups, tolerance, unit)
    if not rates.complete:
        return []
    explainer = Explainer(other_gradients, other_weights, rates.rates, tolerance, unit)
    if explainer.same(recipe, groups):
        return []
    texts = [explainer.causes(recipe, groups, depth) for depth in (1, 2)]
    return [renamed(text, *RUNS) for text in texts[0] or texts[1]]


def _trajectory(scene: Scene, side: int) -> tuple[list[Arrays], list[Arrays]] | None:
    """Return the sampled gradients of each update, and the parameters before the first and after each."""
    run = (scene.a, scene.b)[side]
    pairs = scene.names.pairs.get("parameters", [])
    translated = [pair for pair in pairs if pair in scene.names.pairs.get("gradients", [])]
    first = scene.walk.steps.index(scene.step)
    steps = scene.walk.steps[: max(first + 12, 16)]
    if first + 2 > STEPS or "parameters" not in run.start.parts or not translated:
        return None
    gradients: list[Arrays] = []
    weights: list[Arrays] = [_samples(run.start.parts["parameters"], translated, side)]
    for k in steps[:STEPS]:
        parts = run.steps[k].parts
        if "gradients" not in parts or "parameters" not in parts:
            return None
        gradients.append(_samples(parts["gradients"], translated, side))
        weights.append(_samples(parts["parameters"], translated, side))
    return gradients, weights


def _samples(table: Any, pairs: list[tuple[str, str]], side: int) -> dict[str, np.ndarray]:
    return {
        pair[0]: row for pair, row in zip(pairs, table.rows([p[side] for p in pairs]).samples, strict=True)
    }


def _read(run: TappedRun, names: list[str]) -> Recipe | None:
    """Return the recipe of a torch optimizer whose settings were tapped."""
    settings: dict[str, dict[str, Any]] = {}
    for name in names:
        group = run.settings.get(name)
        if group is None or group.get("kind") not in KINDS:
            return None
        coupled = group["kind"] != "AdamW" and not group.get("decoupled_weight_decay", False)
        values = {key: tuple(x) if isinstance(x := group[key], list) else x for key in KEYS if key in group}
        settings[name] = {**values, "coupled": coupled}
    kinds = {KINDS[run.settings[name]["kind"]] for name in names}
    return Recipe(kinds.pop(), settings) if len(kinds) == 1 else None


def _fitting(gradients: list[Arrays], weights: list[Arrays], tolerance: float, unit: float) -> Recipe | None:
    """Search for a recipe that makes a run's own updates: the usual ones, and those with a few changes."""
    groups = [[i] for i in range(len(gradients))]
    frontier = [Recipe(kind, dict.fromkeys(weights[0], values)) for kind, values in USUAL.items()]
    for _ in range(4):
        for recipe in frontier:
            result = fit(recipe, gradients, weights, groups, tolerance, unit)
            if result.complete and _plausible(result):
                return recipe
        best = sorted(frontier, key=lambda recipe: misfit(recipe, gradients, weights, groups))[:2]
        frontier = [changed for recipe in best for changed in _varied(recipe)]
        frontier += [changed for _, changed in solutions(best[0], gradients, weights, groups)]
    return None


def _plausible(result: Fit) -> bool:
    """Whether all parameters have the same rate, as almost every loop has."""
    for rates in zip(*result.rates.values(), strict=True):
        finite = [rate for rate in rates if np.isfinite(rate)]
        if finite and max(finite) - min(finite) > 1e-3 * max(map(abs, finite)):
            return False
    return True


def _varied(recipe: Recipe) -> Iterator[Recipe]:
    for _, changed in changes(recipe, [[0]]):
        if changed.clip == recipe.clip and changed.factor == recipe.factor:
            yield changed
    if recipe.kind in ("sgd", "rmsprop") and not next(iter(recipe.settings.values()))["momentum"]:
        yield from (recipe.with_settings(momentum=m) for m in (0.9, 0.99, 0.95, 0.5, 0.8))
    # "No decay for biases and norms" is the usual grouping; sampled arrays keep no shape, so names tell.
    for decay in (0.1, 0.01, 1e-4, 5e-4, 0.05):
        settings = {
            name: {**old, "weight_decay": decay if name.endswith(("weight", "kernel", "embedding")) else 0.0}
            for name, old in recipe.settings.items()
        }
        yield replace(recipe, settings=settings)


def extra_causes(scene: Scene) -> list[str]:
    """Name how the updates of running statistics differ: the momentum, the variance's divisor, the mode."""
    if causes := [*mode_causes(scene), *cast_causes(scene, ("extra",))]:
        return causes
    after = scene.aligned("extra")
    before = Aligned("extra", scene.a.before(scene.step), scene.b.before(scene.step), scene.names)
    if not before or before.names != after.names:
        return []
    ratios: dict[str, float] = {}
    for i, name in enumerate(after.names):
        x, y = (t.samples[i] - u.samples[i] for t, u in ((after.a, before.a), (after.b, before.b)))
        square = float(np.vdot(x, x))
        ratio = float(np.vdot(x, y)) / square if square else np.nan
        if square and np.abs(y - ratio * x).max() <= 1e-4 * np.abs(y).max() and abs(ratio - 1) > 1e-6:
            ratios[name] = ratio
    means = [r for name, r in ratios.items() if name.split(".")[-1] not in VARIANCES]
    variances = [r for name, r in ratios.items() if name.split(".")[-1] in VARIANCES]
    if means and max(means) - min(means) <= 1e-3 * max(means):
        reversed_ = min(abs(means[0] - 9), 81 * abs(means[0] - 1 / 9)) < 0.1
        suffix = " (0.9 for 0.1: the two conventions)" if reversed_ else ""
        return [f"running statistics move {means[0]:.4g} times as far in run B: another momentum{suffix}"]
    if variances and not means:
        return ["the running variance alone differs: one run divides by n, the other by n - 1"]
    return []


def optimizer_causes(scene: Scene) -> list[str]:
    """Name why the optimizer's state differs: its type, or a setting without effect on the first update."""
    return list(cast_causes(scene, ("optimizer",))) or setting_causes(scene)
