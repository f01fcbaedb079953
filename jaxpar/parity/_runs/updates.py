"""Name why rates differ, and why parameters or the optimizer's state do after equal gradients.

Sampled elements are a small training by themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .._loops.changes import renamed
from .._loops.explaining import Explainer
from .._loops.fitting import Fit
from .._loops.rates import first_rates, rate_changes
from .passes import cast_causes, listed, unchanged
from .sampled_updates import precision, sampled_updates
from .scene import Scene

STEPS = 48
"""At most so many updates are searched for an explanation."""

ALTERNATIVES = 4
"""More explanations than these explain nothing."""

RUNS = ("run A", "run B")
"""What sentences of `compare_loops` have for torch and for JAX."""


def rate_causes(scene: Scene) -> list[str]:
    """Name how the schedules differ."""
    rates = [
        [list(run.steps[k].numbers.get("rate", {}).values()) for k in scene.updating()]
        for run in (scene.a, scene.b)
    ]
    counts = {len(row) for run in rates for row in run}
    if len(counts) == 1 and max(counts) > 1:
        columns = ({f"group {i}": list(x) for i, x in enumerate(zip(*run, strict=True))} for run in rates)
        return _rate_sentences(*columns)
    x, y = ([float(np.max(row)) if row else np.nan for row in run] for run in rates)
    if len(y) > 2 and len(set(y)) == 1 and len(set(x)) > 1 and y[0] != x[0]:
        return [f"the rate's schedule (run B's rate stays constant, {y[0]:g})"]
    return _rate_sentences({"rate": x}, {"rate": y})


def _rate_sentences(x: dict[str, list[float]], y: dict[str, list[float]]) -> list[str]:
    """Name how the rates of each group differ, and of which groups."""
    result = Fit(y, {name: [1e-8 * abs(rate) for rate in column] for name, column in y.items()})
    sentences = rate_changes(x, result)
    if sentences is None:
        sentences = (first_rates(x, result),)
    return [renamed(text, *RUNS) for text in sentences]


def update_causes(scene: Scene) -> list[str]:
    """Name why parameters differ after the same gradients: the optimizer, its settings, frozen arrays."""
    # First, because a small type leaves parameters as they are whose updates it rounds away.
    if causes := list(cast_causes(scene, ("parameters",))):
        return causes
    still = [unchanged(run, "parameters") for run in (scene.a, scene.b)]
    pairs = scene.names.pairs.get("parameters", [])
    noise = scene.walk.noise | scene.walk.noisy.keys()
    for side, name in enumerate("AB"):
        frozen = [
            pair[0] for pair in pairs if pair[side] in still[side] and pair[1 - side] not in still[1 - side]
        ]
        # Updates of rounding alone, as of a bias before BatchNorm, vanish where nothing decays.
        if frozen and noise.issuperset(frozen) and (causes := setting_causes(scene)):
            return causes
        if frozen and len(frozen) < len(pairs):
            return [f"{listed(frozen)} never changes in run {name}: frozen, or not given to the optimizer"]
        if frozen:
            return [f"no parameter changes in run {name}"]
    if cause := _skipped(scene) or _scaled_in_part(scene):
        return [cause]
    return setting_causes(scene) or list(_in_part(scene))


def _in_part(scene: Scene) -> Iterator[str]:
    """Name the arrays whose updates differ, if they are not all."""
    if names := _different_updates(scene):
        yield (
            f"only the updates of {listed(names)} differ, after equal gradients: another rate or group, "
            "weight decay, or gradients that are changed after they are tapped"
        )


def updates_in_turn(scene: Scene) -> list[str]:
    """Name why parameters differ whose gradients agree, in a step whose loss or other gradients do not.

    Of networks that are trained in turn, as in a GAN, the second one's loss needs the first one's update.
    """
    gradients, after, before = scene.aligned("gradients"), scene.aligned("parameters"), scene.before()
    if not (gradients and after and before):
        return []
    # Adam makes a whole update of a gradient that is rounding alone, however small: each array has its scale.
    unequal = gradients.own_distances > scene.walk.tolerance("gradients")
    agree = {name for name, differs in zip(gradients.names, unequal, strict=True) if not differs}
    moved, began = (
        {name for name, d in zip(x.names, x.distances, strict=True) if d > scene.walk.tolerance("parameters")}
        for x in (after, before)
    )
    noise = scene.walk.noise | scene.walk.noisy.keys()
    names = [name for name in after.names if name in (agree & moved) - began - noise]
    if not names or len(agree) == len(gradients.names):
        return []
    return update_causes(scene) or [
        f"the update of {listed(names)} differs, whose gradients agree; the rest of the step follows from it"
    ]


def setting_causes(scene: Scene) -> list[str]:
    """Name the optimizer's settings that differ: as torch has them, or as the updates show them."""
    return _different_settings(scene) or _recipes(scene)


def _skipped(scene: Scene) -> str:
    """Return that one run makes no update in this step, or not of all arrays, if it does not."""
    after = scene.aligned("parameters")
    before = scene.before()
    if not before or before.names != after.names:
        return ""
    moved = [(x.values != y.values).any(1) for x, y in ((before.a, after.a), (before.b, after.b))]
    # An update of rounding alone, as of a bias before BatchNorm, may vanish in one run.
    noise = scene.walk.noise | scene.walk.noisy.keys()
    is_trained = np.array([name not in noise for name in after.names])
    for i, run in enumerate("AB"):
        still = moved[1 - i] & ~moved[i] & is_trained
        if still.any() and not moved[i].any():
            return f"run {run} makes no update in step {scene.step}: it skips or accumulates"
        if still.any():
            names = [after.names[j] for j in np.flatnonzero(still)]
            counts = [_left_alone(scene, names, side) for side in (i, 1 - i)]
            others = f"in {counts[1]}" if counts[1] else "trains it in all"
            return (
                f"run {run} leaves {listed(names)} alone in {counts[0]} of {len(scene.walk.steps)} updates "
                f"(run {'BA'[i]} {others})"
            )
    return ""


def _scaled_in_part(scene: Scene) -> str:
    """Return that the updates of some arrays differ by one factor, and the others not at all, if so."""
    before, after = scene.before(), scene.aligned("parameters")
    if scene.a.settings or not before or before.names != after.names or not after.sampled.all():
        return ""
    factors: dict[str, float] = {}
    for i, name in enumerate(after.names):
        x, y = (t.samples[i] - u.samples[i] for t, u in ((after.a, before.a), (after.b, before.b)))
        factor = float(np.vdot(x, y)) / max(float(np.vdot(x, x)), 1e-300)
        rounding = 8 * scene.walk.unit * np.abs(after.a.samples[i]).max()
        if np.abs(y - factor * x).max() > 1e-4 * np.abs(y).max() + rounding:
            return ""
        if np.abs(y - x).max() > 1e-3 * np.abs(x).max() + rounding:
            factors[name] = factor
    if not 0 < len(factors) < len(after.names) or np.ptp(list(factors.values())) > 1e-3:
        return ""
    factor = next(iter(factors.values()))
    return (
        f"run B's updates of {listed(list(factors))} are {factor:.4g} times as large: another rate for them"
    )


def _left_alone(scene: Scene, names: list[str], side: int) -> int:
    """Return in how many steps all of these parameters stay as they are."""
    run = (scene.a, scene.b)[side]
    pairs = {pair[0]: pair[side] for pair in scene.names.pairs["parameters"]}
    columns = [pairs[name] for name in names]
    steps = [
        [step.parts.get("parameters") for step in (run.before(k), run.steps[k])] for k in scene.walk.steps
    ]
    return sum(
        np.array_equal(before.rows(columns).values, after.rows(columns).values)
        for before, after in steps
        if before is not None and after is not None
    )


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


def settings_within_rounding(scene: Scene) -> list[str]:
    """Name settings that differ in runs that are the same so far, as of a small weight decay.

    Only where the first run's optimizer was tapped with its settings: others would have to be searched for.
    """
    return _recipes(scene, depths=(1,)) if scene.a.settings else []


def _recipes(scene: Scene, depths: tuple[int, ...] = (1, 2)) -> list[str]:
    updating = scene.updating()
    first = bisect_left(updating, scene.step)
    steps = updating[: max(first + 12, 16)][:STEPS]
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
    groups = pair[0].groups
    texts = explainer.causes(recipe, groups, depths[0])
    suffix = ""
    if not texts and len(depths) > 1:
        names = [name for name in _different_updates(scene) if name in recipe.settings]
        if names and recipe.clip.limit is None:
            # Two changes at once take long to search for in arrays whose updates are the same.
            recipe = replace(recipe, settings={name: recipe.settings[name] for name in names})
            explainer = explainer.of(names)
            suffix = f", for {listed(names)}"
        texts = explainer.causes(recipe, groups, depths[1])
    if len(texts) > ALTERNATIVES:  # as where gradients have no effect, however they are changed
        return []
    return [renamed(text if ", for " in text else text + suffix, *runs) for text in texts]


def _different_updates(scene: Scene) -> list[str]:
    """Return the arrays whose updates differ, if they are a part of all."""
    after = scene.aligned("parameters")
    differ = after.own_distances > scene.walk.tolerance("parameters")
    pairs = zip(after.names, differ, strict=True)
    trained = {name: differs for name, differs in pairs if name not in scene.walk.noise}
    return [name for name, differs in trained.items() if differs] if not all(trained.values()) else []


def optimizer_causes(scene: Scene) -> list[str]:
    """Name why the optimizer's state differs: its type, or a setting without effect on the first update."""
    return list(cast_causes(scene, ("optimizer",))) or setting_causes(scene)
