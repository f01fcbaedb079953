"""The distance of two runs by part and step, and how far rounding may have brought it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .batches import same_rows
from .matching import Aligned, MatchedNames
from .run import NORM, TappedRun, TappedStep

ORDER = ("batch", "loss", "gradients", "rate", "parameters", "optimizer", "extra")
"""The parts of a step in the order in which they are computed from one another."""

UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LOSING = {"loss": 2.0**7, "gradients": 2.0**10, "parameters": 2.0**10, "optimizer": 2.0**11, "extra": 2.0**10}
"""Roundings that the sums of one step may lose in a part before anything grows."""

LEAP, GROWTH = 8.0, 4.0
"""In one step a difference may become `LEAP` times the largest so far, or `GROWTH` times its largest leap."""

NUDGES, FEWEST = 16.0, 2.0**6
"""With a nudged run: this many times its difference so far, and at least so many roundings."""

SINGLE = 4e-7
"""Relative to an update: optax computes schedules and bias corrections in float32, even for float64."""


@dataclass
class PartCurve:
    """The distances of a part, and the distances up to which they are rounding."""

    steps: list[int] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Parting:
    """Where a part first differs by more than rounding: values and relative distance of the worst array."""

    part: str
    step: int
    leaf: str
    a: float
    b: float
    distance: float
    allowed: float


@dataclass
class Walk:
    """The result of comparing all steps: the first parting of every part, in order."""

    steps: list[int]
    curves: dict[str, PartCurve]
    partings: list[Parting]
    scaled: list[int]  # steps whose gradients differ by a factor that the update removes
    level: float  # the largest difference before the parting, in units of what one step loses
    unit: float
    noise: set[str] = field(default_factory=set)  # parameters whose gradients are rounding alone
    noisy: dict[str, np.ndarray] = field(default_factory=dict)  # sampled elements whose gradients are
    noisy_since: int | None = None  # the first step whose update makes whole moves of such elements
    clips_later: bool | None = None  # whether a run clips gradients after they are tapped, if updates show it

    def tolerance(self, part: str) -> float:
        return LOSING[part] * self.unit * self.level * LEAP


def unit_of(a: TappedRun, b: TappedRun) -> float:
    """Return the coarsest rounding unit of the types of parameters and gradients."""
    tables = [
        table
        for run in (a, b)
        for step in [run.start, *run.steps.values()]
        for part, table in step.parts.items()
        if part in ("parameters", "gradients")
    ]
    return max((UNITS.get(name, 0.0) for table in tables for name in table.dtypes), default=UNITS["float32"])


def walked(
    a: TappedRun,
    b: TappedRun,
    names: MatchedNames,
    nudged: TappedRun | None,
    nudged_names: MatchedNames | None,
    one_program: bool = False,
    clips_later: bool | None = None,
) -> Walk:
    """Compare the steps that both runs have; of `one_program` no difference of libraries is allowed."""
    steps = sorted(a.steps.keys() & b.steps.keys())
    unit = unit_of(a, b)
    walk = Walk(steps, {}, [], [], 1.0, unit, clips_later=clips_later)
    parted: dict[str, Parting] = {}
    growth, spread = 2.0, dict.fromkeys(ORDER, 0.0)
    for k in steps:
        x, y = a.steps[k], b.steps[k]
        if nudged is not None and nudged_names is not None and k in nudged.steps:
            for part, distance, *_ in _distances(a.before(k), x, nudged.steps[k], nudged_names, walk, k):
                spread[part] = max(spread[part], distance)
        measured = list(_distances(a.before(k), x, y, names, walk, k))
        excess: list[Parting] = []
        for part, distance, base, leaf, values in measured:
            losing = LOSING.get(part, 0.0) * unit
            allowed = losing * walk.level * max(LEAP, GROWTH * growth)
            if nudged is not None:
                allowed = max(NUDGES * spread[part], FEWEST * unit)
            base = 8 * unit if one_program else {"rate": 2e-6}.get(part, base)
            allowed = 0.0 if part == "batch" else max(allowed, base)
            curve = walk.curves.setdefault(part, PartCurve())
            curve.steps.append(k)
            curve.distances.append(distance)
            curve.allowed.append(allowed)
            if not distance <= allowed:
                excess.append(Parting(part, k, leaf, *values, distance, allowed))
        if (
            not one_program
            and clips_later is not False
            and _is_scaled(excess, (a.before(k), b.before(k), x, y), names)
        ):
            walk.scaled.append(k)
            excess = excess[1:]
        for parting in excess:
            parted.setdefault(parting.part, parting)
        if not parted:
            # After the first parting, growth is not rounding any more.
            parts = LOSING.keys() - ({"gradients"} if k in walk.scaled else set())
            levels = [d / (LOSING[part] * unit) for part, d, *_ in measured if part in parts]
            level = max([walk.level, *(x for x in levels if np.isfinite(x))])
            growth, walk.level = min(max(growth, level / walk.level), LEAP), level
    walk.partings = sorted(parted.values(), key=lambda p: (p.step, ORDER.index(p.part)))
    return walk


def _is_scaled(
    excess: list[Parting], scene: tuple[TappedStep, TappedStep, TappedStep, TappedStep], names: MatchedNames
) -> bool:
    """Whether one run taps gradients before clipping: they differ by a factor, and the updates do not."""
    before_a, before_b, a, b = scene
    parts = [parting.part for parting in excess]
    before, after = (Aligned("parameters", *pair, names) for pair in ((before_a, before_b), (a, b)))
    if parts[:1] != ["gradients"] or len(parts) > 1 or not after or before.names != after.names:
        return False
    factor, residue = common_factor(Aligned("gradients", a, b, names))
    updates = [y.samples[after.sampled] - x.samples[after.sampled]
               for x, y in ((before.a, after.a), (before.b, after.b))]  # fmt: skip
    same_update = np.linalg.norm(updates[1] - updates[0]) <= 0.01 * np.linalg.norm(updates[0])
    return bool(residue <= excess[0].allowed and abs(factor - 1) > 0.05 and factor > 0 and same_update)


def common_factor(aligned: Aligned) -> tuple[float, float]:
    """Return the factor of run B's sampled gradients of run A's, and the residue relative to theirs."""
    x, y = aligned.a.samples[aligned.sampled], aligned.b.samples[aligned.sampled]
    square = float(np.vdot(x, x))
    factor = float(np.vdot(x, y)) / square if square > 0 else 0.0
    norm = float(np.linalg.norm(y))
    return factor, float(np.linalg.norm(y - factor * x)) / norm if norm > 0 else 0.0


def _distances(
    before: TappedStep, a: TappedStep, b: TappedStep, names: MatchedNames, walk: Walk, step: int
) -> Iterator[tuple[str, float, float, str, tuple[float, float]]]:
    """Yield each part: its distance, a distance that is allowed anyway, the array, and both runs' values."""
    if a.batch and b.batch:
        yield "batch", 0.0 if same_rows(a, b) else 1.0, 0.0, "", _row_counts(a, b)
    for part in ("loss", "rate"):
        x, y = a.numbers.get(part), b.numbers.get(part)
        if x and y:
            pair = (float(np.mean(list(x.values()))), float(np.mean(list(y.values()))))
            if part == "rate":
                pair = _rates(list(x.values()), list(y.values()))
            yield part, _relative(*pair), 0.0, "", pair
    for part in ("gradients", "parameters", "optimizer", "extra"):
        aligned = Aligned(part, a, b, names)
        if not aligned:
            continue
        distances = aligned.distances
        if part == "gradients":
            walk.noise |= _noise(aligned, walk.tolerance("gradients"))
            for name, elements in _noisy_elements(aligned, walk.unit).items():
                walk.noisy[name] = walk.noisy.get(name, False) | elements
        # Adam makes whole steps of gradients that are nothing but rounding, as of a bias before BatchNorm.
        noisy = [_is_noise(name, part, walk.noise) for name in aligned.names]
        distances = np.where(noisy, 0.0, distances)
        if part in ("parameters", "optimizer", "extra") and walk.noisy:
            distances = _without_noise(aligned, distances, walk, step)
        worst = int(np.argmax(distances))
        base = 0.0
        if part == "parameters":
            base = SINGLE * _update(before, aligned)
        yield part, float(distances[worst]), base, aligned.names[worst], aligned.values(worst)


def _is_noise(name: str, part: str, noise: set[str]) -> bool:
    if part == "extra" and name.endswith("mean"):  # the mean of what such a bias is added to
        return bool(noise)
    return any(name == leaf or name.endswith(f".{leaf}") for leaf in noise)


def _row_counts(a: TappedStep, b: TappedStep) -> tuple[float, float]:
    counts = [float(next(iter(step.batch.values())).digests.shape[1]) for step in (a, b)]
    return counts[0], counts[1]


def _rates(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the rates of the group that differs most; a single rate is the rate of all groups."""
    count = max(len(x), len(y))
    xs, ys = (list(z) * count if len(z) == 1 else list(z) for z in (x, y))
    return max(zip(xs, ys, strict=False), key=lambda pair: _relative(*pair))


def _relative(x: float, y: float) -> float:
    if (np.isnan(x) and np.isnan(y)) or x == y:
        return 0.0
    distance = abs(x - y) / max(abs(x), abs(y))
    return float(distance) if np.isfinite(distance) else float("inf")


def _noise(aligned: Aligned, tolerance: float) -> set[str]:
    """Return the arrays whose gradients are rounding alone: tiny, and unequal in both runs."""
    sizes = np.sqrt(aligned.a.sizes)
    norms = np.maximum(aligned.a.values[:, NORM], aligned.b.values[:, NORM]) / sizes
    unequal = aligned.distances * aligned.rms > 0.02 * norms
    return {aligned.names[i] for i in np.flatnonzero((norms < 8 * tolerance * aligned.rms) & unequal)}


def _noisy_elements(aligned: Aligned, unit: float) -> dict[str, np.ndarray]:
    """Return the sampled elements whose gradients are rounding alone: tiny for their array, and unequal."""
    x, y = np.abs(aligned.a.samples), np.abs(aligned.b.samples)
    larger = np.maximum(x, y)
    with np.errstate(invalid="ignore"):
        tiny = larger < FEWEST * unit * larger.max(1, keepdims=True, initial=0.0)
        unequal = np.abs(aligned.a.samples - aligned.b.samples) > 0.02 * larger
    noisy = tiny & unequal & aligned.sampled[:, None]
    return {aligned.names[i]: noisy[i] for i in np.flatnonzero(noisy.any(1))}


def _without_noise(aligned: Aligned, distances: np.ndarray, walk: Walk, step: int) -> np.ndarray:
    """Return distances without the elements of which the optimizer makes whole updates of rounding."""
    distances = distances.copy()
    for i, name in enumerate(aligned.names):
        leaf = next((x for x in walk.noisy if name == x or name.endswith(f".{x}")), None)
        if leaf is not None and distances[i] > walk.tolerance("parameters"):
            elements = np.abs(aligned.a.samples[i] - aligned.b.samples[i])[~walk.noisy[leaf]]
            distances[i] = min(distances[i], float(elements.max(initial=0.0) / aligned.rms[i]))
            walk.noisy_since = step if walk.noisy_since is None else walk.noisy_since
    return distances


def _update(before: TappedStep, aligned: Aligned) -> float:
    """Return the largest change of a sampled parameter in run A, relative to its array."""
    earlier = before.parts.get("parameters")
    if earlier is None or not set(aligned.names) <= set(earlier.names):
        return 0.0
    with np.errstate(all="ignore"):
        moved = np.abs(aligned.a.samples - earlier.rows(aligned.names).samples).max(1) / aligned.rms
    return float(np.nanmax(moved, initial=0.0))
