"""Name why buffers differ: averages of parameters, and running statistics of BatchNorm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from .._loops.averages import average_cause
from .._loops.changes import renamed
from .._loops.runs import Run
from .matching import Aligned, plain_name
from .passes import cast_causes, mode_causes
from .sampled_updates import samples
from .scene import Scene
from .terms import terms_cause
from .updates import RUNS, STEPS

Pair = tuple[str, str]

VARIANCES = ("var", "running_var")
EXPLAINED = 1e-4
"""The part of a change that may stay unexplained."""
CLEARLY = 10.0
"""How many times as much variances must differ as what rounding alone makes different."""


def extra_causes(scene: Scene) -> list[str]:
    """Name how buffers differ that part in this step: as averages, and else as running statistics."""
    if causes := [*mode_causes(scene), *cast_causes(scene, ("extra",))]:
        return causes
    after = scene.aligned("extra")
    parted = {after.names[i] for i in np.flatnonzero(after.distances > scene.walk.tolerance("extra"))}
    averaged: set[str] = set()
    for prefix, group in _averages(scene).items():
        averaged |= {pair[0] for pair in group}
        if parted & {pair[0] for pair in group} and (cause := _average_cause(scene, group)):
            causes.append(f"{prefix[:-1]}: {cause}" if prefix else cause)
    if not causes and (cause := terms_cause(scene)):
        return [cause]
    return causes or _statistics_causes(scene, parted - averaged)


# ------------------------------------------------------------------------------------------------- averages


def _averages(scene: Scene) -> dict[str, dict[Pair, Pair]]:
    """Return the arrays that are averages, by the prefix of their names, with their parameters."""
    parameters = {plain_name(pair[0], ""): pair for pair in scene.names.pairs.get("parameters", [])}
    groups: defaultdict[str, dict[Pair, Pair]] = defaultdict(dict)
    for pair in scene.names.pairs.get("extra", []):
        name = plain_name(pair[0], "")
        if parameter := _parameter_of(name, parameters):
            groups[name.removesuffix(parameter)][pair] = parameters[parameter]
    return dict(groups)


def _parameter_of(name: str, parameters: Mapping[str, Pair]) -> str:
    """Return the parameter whose name ends the name of its average."""
    parts = name.split(".")
    return next((x for i in range(len(parts)) if (x := ".".join(parts[i:])) in parameters), "")


def _average_cause(scene: Scene, group: Mapping[Pair, Pair]) -> str:
    """Return how each run makes its averages of the parameters."""
    steps = scene.walk.steps[:STEPS]
    runs, averages = [], []
    for side, run in enumerate((scene.a, scene.b)):
        tables = [run.start, *(run.steps[k] for k in steps)]
        if any("parameters" not in x.parts for x in tables) or any(
            "extra" not in x.parts for x in tables[1:]
        ):
            return ""
        weights = [samples(x.parts["parameters"], list(group.values()), side) for x in tables]
        rows = [samples(x.parts["extra"], list(group), side) for x in tables[1:]]
        averages.append([{group[pair][0]: row[pair[0]] for pair in group} for row in rows])
        runs.append(Run(weights=weights))
    cause = average_cause(averages[0], runs[0], averages[1], runs[1], scene.walk.unit)
    return renamed(cause, *RUNS) if cause else ""


# ---------------------------------------------------------------------------------------- running statistics


def _statistics_causes(scene: Scene, parted: set[str]) -> list[str]:
    """Name how the updates of running statistics differ: the momentum, or the variance's divisor."""
    after = scene.aligned("extra")
    before = Aligned("extra", scene.a.before(scene.step), scene.b.before(scene.step), scene.names)
    means = [name for name in after.names if name in parted and not _is_variance(name)]
    variances = [name for name in after.names if name in parted and _is_variance(name)]
    if (before and before.names == after.names) or scene.step == scene.walk.steps[0]:
        factors = [factor for name in means if (factor := _factor(before, after, name)) is not None]
        if factors and len(factors) == len(means) and np.ptp(factors) <= 1e-3 * max(factors):
            reversed_ = min(abs(factors[0] - 9), 81 * abs(factors[0] - 1 / 9)) < 0.1
            suffix = " (0.9 for 0.1: the two conventions)" if reversed_ else ""
            return [
                f"running statistics move {factors[0]:.4g} times as far in run B: another momentum{suffix}"
            ]
    if variances and not means:
        return _divisors([_ratio(before, after, name, scene.walk.unit) for name in variances])
    if variances:
        return [
            "running means and variances differ after the same rows: another momentum, or another number of "
            "passes in a step"
        ]
    return []


def divisors_within_rounding(scene: Scene) -> list[str]:
    """Name running variances that one run divides by n - 1 and one by n, however large n is."""
    after = scene.aligned("extra")
    before = Aligned("extra", scene.a.before(scene.step), scene.b.before(scene.step), scene.names)
    names = [name for name in after.names if _is_variance(name)]
    if not names or len(names) == len(after.names):
        return []
    distances = dict(zip(after.names, after.distances, strict=True))
    means = max((d for name, d in distances.items() if not _is_variance(name)), default=0.0)
    if min(distances[name] for name in names) <= CLEARLY * max(means, scene.walk.unit):
        return []
    return _divisors([_ratio(before, after, name, scene.walk.unit) for name in names])


def _is_variance(name: str) -> bool:
    return name.split(".")[-1] in VARIANCES


def _factor(before: Aligned, after: Aligned, name: str) -> float | None:
    """Return how many times as far an array moves in run B, from 0 at first, if all its elements do so."""
    i = after.names.index(name)
    x, y = after.a.samples[i], after.b.samples[i]
    if name in before.names:
        j = before.names.index(name)
        x, y = x - before.a.samples[j], y - before.b.samples[j]
    square = float(np.vdot(x, x))
    factor = float(np.vdot(x, y)) / square if square else 0.0
    explained = np.abs(y - factor * x).max() <= EXPLAINED * np.abs(y).max()
    return factor if explained and abs(factor - 1) > 1e-6 else None


def _ratio(before: Aligned, after: Aligned, name: str, unit: float) -> float | None:
    """Return c, if run A's variances are c times run B's plus a multiple of the earlier ones (1 at first)."""
    i = after.names.index(name)
    x, y = after.a.samples[i], after.b.samples[i]
    earlier = before.a.samples[before.names.index(name)] if name in before.names else np.ones_like(x)
    terms = np.stack([y, earlier], 1)
    shares = np.linalg.lstsq(terms, x)[0]
    rounding = 2 * unit * np.abs(x).max()
    explained = np.abs(terms @ shares - x).max() <= EXPLAINED * np.abs(x - y).max() + rounding
    return float(shares[0]) if explained and len(x) > 2 else None


def _divisors(ratios: Sequence[float | None]) -> list[str]:
    """Name the run that divides by n - 1, and n, by the ratios n / (n - 1) of its variances."""
    larger = [ratio is not None and ratio > 1 for ratio in ratios]
    if None in ratios or all(larger) == any(not x for x in larger):
        return []
    run = "A" if larger[0] else "B"
    counts = {round(1 / (1 - min(ratio, 1 / ratio))) for ratio in ratios if ratio}
    rows = f" (n = {counts.pop()})" if len(counts) == 1 else ""
    return [
        f"the running variance alone differs: run {run} divides by n - 1{rows}, run {'BA'[run == 'B']} by n"
    ]
