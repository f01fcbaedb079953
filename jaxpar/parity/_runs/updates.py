"""Name why parameters differ after equal gradients, and why running statistics or the optimizer's state do.

Sampled elements are a small training by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._loops.averages import average_cause
from .._loops.explaining import Explainer
from .._loops.fitting import Fit
from .._loops.rates import first_rates, rate_changes
from .._loops.runs import Run
from .._loops.wording import renamed
from .matching import Aligned, plain_name
from .passes import cast_causes, listed, mode_causes, unchanged
from .sampled_updates import precision, sampled_updates, samples
from .scene import Scene

STEPS = 48
"""At most so many updates are searched for an explanation."""

RUNS = ("run A", "run B")
"""What sentences of `compare_loops` have for torch and for JAX."""

VARIANCES = ("var", "running_var")


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
    if sentences is None:
        sentences = (first_rates({"rate": x}, result),)
    return [renamed(text, *RUNS) for text in sentences]


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
    first = scene.walk.steps.index(scene.step)
    steps = scene.walk.steps[: max(first + 12, 16)][:STEPS]
    if first + 2 > STEPS:
        return []
    a, b = (sampled_updates(run, scene.names, i, steps) for i, run in enumerate((scene.a, scene.b)))
    if a is None or b is None:
        return []
    # Sentences begin with the run in which parameters have no gradient for some updates.
    pair, runs = ((b, a), RUNS[::-1]) if b.absences and not a.absences else ((a, b), RUNS)
    explained = pair[0].explained(scene.walk.unit)
    if explained is None:
        return []
    recipe, rates = explained
    tolerance, unit = precision(scene.walk.unit)
    explainer = Explainer(pair[1].gradients, pair[1].weights, rates.rates, tolerance, unit)
    if explainer.same(recipe, pair[0].groups):
        return []
    texts = [explainer.causes(recipe, pair[0].groups, depth) for depth in (1, 2)]
    return [renamed(text, *runs) for text in texts[0] or texts[1]]


def extra_causes(scene: Scene) -> list[str]:
    """Name how the updates of running statistics differ: the momentum, the variance's divisor, the mode."""
    if causes := [*mode_causes(scene), *cast_causes(scene, ("extra",)), *_average_causes(scene)]:
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


def _average_causes(scene: Scene) -> Iterator[str]:
    """Name how averages of the parameters differ, if the buffers are those."""
    steps = scene.walk.steps[:STEPS]
    runs, averages = [], []
    for side, run in enumerate((scene.a, scene.b)):
        parameters = {plain_name(pair[side], ""): pair for pair in scene.names.pairs.get("parameters", [])}
        pairs = {
            pair: parameters.get(_parameter_of(plain_name(pair[side], ""), parameters))
            for pair in scene.names.pairs.get("extra", [])
        }
        tables = [run.start, *(run.steps[k] for k in steps)]
        if not pairs or None in pairs.values() or any("parameters" not in x.parts for x in tables):
            return
        if any("extra" not in x.parts for x in tables[1:]):
            return
        names = {pair: str(other and other[0]) for pair, other in pairs.items()}
        weights = [samples(x.parts["parameters"], list(filter(None, pairs.values())), side) for x in tables]
        rows = [samples(x.parts["extra"], list(pairs), side) for x in tables[1:]]
        averages.append([{names[pair]: row[pair[0]] for pair in pairs} for row in rows])
        runs.append(Run(weights=weights))
    if cause := average_cause(averages[0], runs[0], averages[1], runs[1], scene.walk.unit):
        yield renamed(cause, *RUNS)


def _parameter_of(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the parameter whose name ends the name of its average."""
    parts = name.split(".")
    return next((x for i in range(len(parts)) if (x := ".".join(parts[i:])) in parameters), "")


def optimizer_causes(scene: Scene) -> list[str]:
    """Name why the optimizer's state differs: its type, or a setting without effect on the first update."""
    return list(cast_causes(scene, ("optimizer",))) or setting_causes(scene)
