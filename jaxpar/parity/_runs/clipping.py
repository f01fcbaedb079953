"""Limits of gradients: which ones runs meet, and gradients that are clipped after they are tapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._loops.changes import LIMITS
from .._loops.fitting import Fit
from .._loops.recipe import Recipe
from .digests import COLUMNS
from .envelope import common_factor, unit_of
from .matching import Aligned, MatchedNames
from .operation_types import representable
from .run import BITS, LARGEST, LEAST, MEAN, NORM, Table, TappedRun
from .sampled_updates import SampledUpdates, sampled_updates
from .scene import Scene

FORMS = ("the global norm", "the values", "the norm of each array")
"""What a limit of gradients may be about."""

STEPS = 16
"""Updates that show whether a run clips after its gradients are tapped."""

ADDED = 1e-4
"""A factor of gradients so close to 1 comes from the 1e-6 that torch adds to their norm."""

EVEN, CLEARLY = 1e-3, 10.0
"""Rates whose ratio varies by less follow one schedule, if other rates vary `CLEARLY` times as much."""


def clip_cause(scene: Scene) -> str:
    """Name a limit that the gradients of one run, or of each run, meet in several steps."""
    runs, steps = (scene.a, scene.b), scene.walk.steps
    limits = [gradient_limits(run, steps) for run in runs]
    factor, residue = common_factor(scene.aligned("gradients"))
    parallel = residue <= scene.walk.tolerance("gradients")
    for i, form in enumerate(FORMS):
        one, other = limits[0][i], limits[1][i]
        if one and other:
            if abs(one - other) <= 1e-4 * one:
                # Clipped gradients of one norm may differ for another reason, such as an array of one run.
                by_factor = parallel and residue <= abs(factor - 1) <= ADDED
                if by_factor and abs(one - other) > 1e-12 * one:
                    return f"both clip {form} at {one:.4g}; one by the norm + 1e-6, one by the norm alone"
                continue
            return f"run A clips {form} at {one:.4g}, run B at {other:.4g}"
    kinds = [next((i for i in range(3) if limit[i]), None) for limit in limits]
    texts = [
        None if kind is None else f"clips {FORMS[kind]} at {limits[side][kind]:.4g}"
        for side, kind in enumerate(kinds)
    ]
    if texts[0] and texts[1]:
        return "" if kinds[0] == kinds[1] else f"run A {texts[0]}, run B {texts[1]}"
    if not texts[0] and not texts[1]:
        return _clipped_once(scene, factor) if parallel else ""
    side = 0 if texts[0] else 1
    kind = kinds[side] or 0
    if not parallel and np.isclose(_largest(runs[1 - side], steps, kind), limits[side][kind], 1e-4):
        return ""  # it meets the limit more rarely, with other gradients
    text = f"run {'AB'[side]} {texts[side]}{_unscaled(limits[side][kind])}"
    return f"{text}; {_of_the_other(scene, side, kind, limits[side][kind], parallel)}"


def _of_the_other(scene: Scene, side: int, kind: int, limit: float, parallel: bool) -> str:
    """Return what the run does whose gradients do not meet the limit of the run of this side."""
    clipped, unclipped = "AB"[side], "BA"[side]
    run, steps = (scene.a, scene.b)[1 - side], scene.walk.steps
    largest = _largest(run, steps, kind)
    if largest < limit:
        return (
            f"in run {unclipped} it is at most {largest:.4g}: run {clipped} clips larger gradients "
            "(a sum for a mean, a loss scale), or scales them to this size"
        )
    if kind == 0 and (part := _norm_of_part(run, steps, limit)):
        return f"run {unclipped} clips by the norm {part} alone"
    if scene.walk.clips_later is False:
        return f"run {unclipped} does not" + (
            "" if parallel or kind else ", or clips each part of a sum of gradients"
        )
    return f"run {unclipped} does not, or clips after its gradients are tapped"


def _norm_of_part(run: TappedRun, steps: Sequence[int], limit: float) -> str:
    """Return the arrays by whose norm a run clips, if they are not all: "of actor", "without scale"."""
    tables = [run.steps[k].parts["gradients"] for k in steps if "gradients" in run.steps[k].parts]
    names = tables[0].names if tables else ()
    if len(names) < 2 or any(table.names != names for table in tables):
        return ""
    squares = np.stack([np.square(table.values[:, NORM]) for table in tables])
    options = {f"without {name}": np.array([x != name for x in names]) for name in names}
    for prefix in dict.fromkeys(name.partition(".")[0] for name in names if "." in name):
        chosen = np.array([name.startswith(f"{prefix}.") for name in names])
        options |= {f"of {prefix}": chosen, f"without {prefix}": ~chosen}
    met = (
        text for text, chosen in options.items() if 0 < chosen.sum() < len(names)
        if np.isclose(_met(np.sqrt(squares[:, chosen].sum(1))), limit, 1e-4)
    )  # fmt: skip
    return next(met, "")


def _clipped_once(scene: Scene, factor: float) -> str:
    """Return that one run's gradients have a round norm in this step, larger than in all others, if so."""
    side = 1 if factor < 1 else 0
    runs = scene.a, scene.b
    norms = [magnitudes(run.steps[scene.step].parts["gradients"])[0] for run in runs]
    limit = float(f"{norms[side]:.2g}")
    is_limit = abs(limit - norms[side]) <= 1e-5 * limit and limit > 0
    if (
        abs(factor - 1) <= ADDED
        or not is_limit
        or _largest(runs[side], scene.walk.steps, 0) > 1.00001 * limit
    ):
        return ""
    text = f"run {'AB'[side]} clips the global norm at {limit:g}"
    return f"{text}; run {'BA'[side]} does not ({norms[1 - side]:.4g})"


def _largest(run: TappedRun, steps: Sequence[int], kind: int) -> float:
    """Return the largest magnitude of a form in all steps."""
    tables = [run.steps[k].parts["gradients"] for k in steps if "gradients" in run.steps[k].parts]
    return max((x for table in tables if np.isfinite(x := magnitudes(table)[kind])), default=np.inf)


def _unscaled(limit: float) -> str:
    """Return that a limit is a usual one divided by a loss scale, if it is."""
    for usual in LIMITS:
        scale = usual / limit
        exponent = round(np.log2(scale))
        if exponent >= 6 and abs(scale - 2.0**exponent) <= 1e-4 * scale:
            return f" ({usual:g} / {2**exponent}: before gradients are unscaled?)"
    return ""


def gradient_limits(run: TappedRun, steps: Sequence[int]) -> list[float]:
    """Return a run's limits of FORMS; 0 means no limit."""
    parts = [run.steps[k].parts for k in steps]
    tables = [part["gradients"] for part in parts if "gradients" in part]
    columns = zip(*map(magnitudes, tables), strict=True)
    # A type with few bits has few values, so that two steps often have the same largest one.
    is_coarse = any(representable(row) for table in tables[:1] for row in table.samples)
    return [_met(np.array(column), 4 if is_coarse else 2) for column in columns] or [0.0] * len(FORMS)


def magnitudes(table: Table) -> tuple[float, float, float]:
    """Return the magnitudes of FORMS in one step."""
    norms, extremes = table.values[:, NORM], table.values[:, [LEAST, LARGEST]]
    return float(np.linalg.norm(norms)), float(np.abs(extremes).max()), float(norms.max())


def _met(values: np.ndarray, least: int = 2) -> float:
    """Return the largest value if `least` steps have it, to torch's 1e-6, and none is larger."""
    values = values[np.isfinite(values)]
    largest = float(values.max(initial=0.0))
    return largest if largest and (values >= largest * (1 - 2e-5)).sum() >= least else 0.0


# ------------------------------------------------------------------------ gradients tapped before clipping


@dataclass(frozen=True)
class Clipping:
    """A limit of FORMS; `eps` is added to a norm by which gradients are divided."""

    form: int
    limit: float
    eps: float = 0.0

    def of_run(self, run: TappedRun) -> TappedRun:
        """Return the run with the gradients of each step clipped."""
        steps = {}
        for k, step in run.steps.items():
            table = step.parts.get("gradients")
            parts = {**step.parts, "gradients": self.of_table(table)} if table else step.parts
            steps[k] = replace(step, parts=parts)
        return replace(run, steps=steps)

    def of_table(self, table: Table) -> Table:
        """Return the statistics of clipped gradients; norms and means of clipped values stay as they are."""
        values = table.values.copy()
        if FORMS[self.form] == "the values":
            columns = [LEAST, LARGEST, *range(len(COLUMNS), values.shape[1])]
            values[:, columns] = np.clip(values[:, columns], -self.limit, self.limit)
        else:
            norms = values[:, NORM]
            if FORMS[self.form] == "the global norm":
                norms = np.full_like(norms, np.linalg.norm(norms))
            factors = np.minimum(self.limit / np.maximum(norms + self.eps, 1e-300), 1.0)
            values[:, np.arange(values.shape[1]) != BITS] *= factors[:, None]
        return replace(table, values=values)


def with_clipped_gradients(runs: list[TappedRun], names: MatchedNames) -> tuple[list[TappedRun], bool | None]:
    """Return run A, run B and perhaps run A nudged, and whether one clips after gradients are tapped.

    Gradients that are tapped before are clipped. None means that no run does, or that nothing shows it.
    """
    a, b = runs[:2]
    steps = sorted(a.steps.keys() & b.steps.keys())
    limits = [gradient_limits(run, steps) for run in runs]
    for side, (run, other) in enumerate(((a, b), (b, a))):
        form = next((i for i, limit in enumerate(limits[1 - side]) if limit), None)
        if form is None or any(limits[side]):
            continue
        later, clipping = _later((run, other), names, side, Clipping(form, limits[1 - side][form]))
        if not later:
            return runs, later
        note = (
            f"run {'AB'[side]} taps gradients before it clips {FORMS[form]} at {clipping.limit:.4g}, as its "
            "updates show: they are compared as they are clipped"
        )
        clipped = clipping.of_run(run)
        if FORMS[form] == "the values":
            _take_statistics(clipped, other, names, side)
            note += ", by the sampled elements"
        clipped = replace(clipped, notes=[*run.notes, note])
        nudged = [x if side else clipping.of_run(x) for x in runs[2:]]
        return [*((other, clipped) if side else (clipped, other)), *nudged], True
    return runs, None


def _later(
    runs: tuple[TappedRun, TappedRun], names: MatchedNames, side: int, clipping: Clipping
) -> tuple[bool | None, Clipping]:
    """Return whether the first run clips after its gradients are tapped, and how; None if nothing shows it.

    An optimizer must explain its updates by the tapped gradients, or else by clipped ones. Where both do,
    as for SGD with a rate of its own in each step, the rates must follow the schedule.
    """
    run, other = runs
    unit = unit_of(run, other)
    steps = sorted(run.steps.keys() & other.steps.keys())[:STEPS]
    tapped = sampled_updates(run, names, side, steps)
    tables = [run.steps[k].parts["gradients"] for k in steps if "gradients" in run.steps[k].parts]
    if tapped is None or not any(magnitudes(table)[clipping.form] > clipping.limit for table in tables):
        return None, clipping
    rounded = float(f"{clipping.limit:.4g}")  # torch's clipped norms are a little below the limit
    limit = rounded if abs(rounded - clipping.limit) <= 2e-5 * rounded else clipping.limit
    clippings = [Clipping(clipping.form, limit, eps) for eps in (0.0, 1e-6)]
    clipped = [sampled_updates(x.of_run(run), names, side, steps) or tapped for x in clippings]
    others = sampled_updates(other, names, 1 - side, steps)
    others_explained = others.explained(unit) if others is not None else None
    recipe = _recipe((tapped, *clipped), others_explained and others_explained[0], unit)
    if recipe is None:
        return None, clipping
    schedule = _schedule(runs, steps)
    if schedule is None:
        schedule = _rates(others_explained and others_explained[1])
    spread = [_unevenness(_rates(updates.fit(recipe, unit)), schedule) for updates in (tapped, *clipped)]
    plain, later = spread[0], min(spread[1:])
    near, far = sorted((plain, later))
    if near == np.inf or not (far == np.inf or (near < EVEN and far > CLEARLY * near)):
        return None, clipping
    return later < plain, clippings[spread[1:].index(later)]


def _recipe(options: Sequence[SampledUpdates], others: Recipe | None, unit: float) -> Recipe | None:
    """Return an optimizer that explains one of the updates: the other run's first, which takes no search."""
    if others is not None and any(updates.fit(others, unit) for updates in options):
        return others
    explained = next(filter(None, (updates.explained(unit) for updates in options)), None)
    return explained and explained[0]


def _schedule(runs: Sequence[TappedRun], steps: Sequence[int]) -> np.ndarray | None:
    """Return the rate of each step that a run tapped, if one did."""
    for run in runs:
        numbers = [list(run.steps[k].numbers.get("rate", {}).values()) for k in steps]
        if all(numbers):
            return np.array([max(rates) for rates in numbers])
    return None


def _rates(fitted: Fit | None) -> np.ndarray | None:
    """Return the rate of each step, if an optimizer explains all of them."""
    if fitted is None:
        return None
    columns = [
        [rate for rate in rates if np.isfinite(rate)] for rates in zip(*fitted.rates.values(), strict=True)
    ]
    return np.array([np.median(rates) if rates else np.nan for rates in columns])


def _unevenness(rates: np.ndarray | None, schedule: np.ndarray | None) -> float:
    """Return how far the ratio of the rates and a schedule varies; infinity where nothing is explained."""
    if rates is None:
        return np.inf
    with np.errstate(all="ignore"):
        ratios = rates if schedule is None else rates / schedule
    ratios = ratios[np.isfinite(ratios)]
    return float(np.ptp(ratios) / np.abs(ratios).max()) if ratios.any() else np.inf


def _take_statistics(clipped: TappedRun, other: TappedRun, names: MatchedNames, side: int) -> None:
    """Set norms and means, which clipped elements change, to the other run's where the samples agree."""
    for k in clipped.steps.keys() & other.steps.keys():
        steps = (other.steps[k], clipped.steps[k]) if side else (clipped.steps[k], other.steps[k])
        aligned = Aligned("gradients", *steps, names)
        if not aligned:
            continue
        clipped_table, others = (aligned.b, aligned.a) if side else (aligned.a, aligned.b)
        near = np.abs(clipped_table.samples - others.samples).max(1) <= 1e-4 * aligned.rms
        table = clipped.steps[k].parts["gradients"]
        for name, row, agrees in zip(clipped_table.names, others.values, near, strict=True):
            if agrees:
                table.values[table.names.index(name), [NORM, MEAN]] = row[[NORM, MEAN]]
