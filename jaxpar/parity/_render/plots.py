"""Compute the coordinates of the report's plots, which the template draws."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from .._comparison_data import ComparisonData, Curve, LayerResult
from ..measuring import Judged, Kind, Level, Outcome
from . import phrases

POINTS = 1500  # the maximum of one plot of errors
WIDTH, HEIGHT = 360, 278
LEFT, RIGHT, TOP, BOTTOM = 92, 348, 12, 212
ZERO_X, ZERO_Y = 70, 230  # the pixels of zeros, which a logarithmic axis does not have
CURVE_WIDTH, CURVE_HEIGHT = 720, 300
# Below float64's unit roundoff of 1.1e-16, so that a difference of one rounding still has a visible bar.
BAR_FLOOR = 1e-17


@dataclasses.dataclass(frozen=True)
class Axis:
    """A logarithmic axis from `low` to `high` (powers of ten) between two pixels."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float) -> Axis:
        """Return an axis of the whole decades that contain the values."""
        logs = [math.log10(v) for v in values if 0 < v < math.inf] or [0.0]
        # One decade on either side if all values are the same power of ten: `at` divides by the axis' length.
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        return cls(low - (low == high), high + (low == high), start, end)

    def at(self, value: float) -> float:
        """Return the pixel of a value; values beyond an end are drawn at that end."""
        log = math.log10(value) if value > 0 else self.low
        part = (min(max(log, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        step = max(1, math.ceil((self.high - self.low) / 6))
        return [(self.at(10.0**i), f"1e{i}") for i in range(self.low, self.high + 1, step)]


@dataclasses.dataclass(frozen=True)
class Guide:
    text: str
    start: tuple[float, float]
    end: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A plot of errors against magnitudes for one kind of tensor; a mark is (x, y)."""

    kind: Kind
    x: Axis
    y: Axis
    marks: dict[Outcome, list[tuple[float, float]]]
    guides: list[Guide]
    tensors: int
    elements: int


def scatters(comparison: ComparisonData) -> list[Scatter]:
    """Return a plot for each kind of tensor that has samples."""
    sampled = [row for row in comparison.rows if row.difference.samples]
    kinds = {kind: [row for row in sampled if row.difference.kind is kind] for kind in Kind}
    return [_scatter(kind, rows, comparison) for kind, rows in kinds.items() if rows]


# The drawing order: later marks cover earlier ones.
ON_TOP = (Outcome.NOISE, Outcome.SAME, Outcome.WORSE, Outcome.CONSTANTS, Outcome.DIFFERENT)


def _scatter(kind: Kind, rows: Sequence[Judged], comparison: ComparisonData) -> Scatter:
    pairs = [pair for row in rows for pair in row.difference.samples]
    x = Axis.over((a for a, _ in pairs), LEFT, RIGHT)
    y = Axis.over((b for _, b in pairs), BOTTOM, TOP)
    marks: dict[Outcome, list[tuple[float, float]]] = {}
    for outcome in ON_TOP:
        of_it = [pair for row in rows if row.outcome is outcome for pair in row.difference.samples]
        # Rounded to whole pixels, most points coincide, which keeps the file small.
        pixels: set[tuple[float, float]] = {
            (round(x.at(a)) if a else ZERO_X, round(y.at(b)) if b else ZERO_Y) for a, b in of_it
        }
        if pixels:
            marks[outcome] = sorted(pixels)[:: max(1, math.ceil(len(pixels) / POINTS))]
    if comparison.level is Level.SEMANTIC:
        factors = {"limit": comparison.policy.relative}
    else:
        factors = {"one rounding": max((row.difference.unit or 0 for row in rows), default=0)}
    guides = [g for text, factor in factors.items() if factor and (g := _guide(text, factor, x, y))]
    return Scatter(kind, x, y, marks, guides, len(rows), len(pairs))


def _guide(text: str, factor: float, x: Axis, y: Axis) -> Guide | None:
    """Return the visible part of the line error = factor·magnitude."""
    shift = math.log10(factor)
    low, high = max(x.low, y.low - shift), min(x.high, y.high - shift)
    if low >= high:
        return None
    start, end = ((x.at(10.0**log), y.at(10.0 ** (log + shift))) for log in (low, high))
    return Guide(f"{text}: {phrases.short(factor)} of the magnitude", start, end)


@dataclasses.dataclass(frozen=True)
class Bar:
    label: str
    kind: str
    text: str
    part: float  # the filled percentage of the width
    outcome: Outcome
    note: str


@dataclasses.dataclass(frozen=True)
class Bars:
    title: str
    text: str
    limit: float  # the position of the bound in percent of the width
    bars: list[Bar]  # in order of execution


def bars(comparison: ComparisonData) -> Bars:
    """Return bars for the replayed layers, or else for the worst step of every tensor."""
    d = comparison.divergence
    return _layer_bars(d.layers, comparison.policy.relative) if d and d.layers else _tensor_bars(comparison)


def _layer_bars(layers: Sequence[LayerResult], limit: float) -> Bars:
    axis = Axis.over([BAR_FLOOR, limit, *(layer.relative for layer in layers)], 0, 100)
    layer_bars = [
        Bar(
            label=phrases.layer(layer.reference),
            kind=layer.kind,
            text=phrases.short(layer.relative),
            part=axis.at(layer.relative),
            outcome=Outcome.SAME if layer.same else Outcome.DIFFERENT,
            note=layer.note,
        )
        for layer in layers
    ]
    text = (
        "Each layer is given the reference's own input, so an error shows in the layer that makes it. "
        "Relative difference of its output, logarithmic, in order of execution."
    )
    return Bars("Layer by layer", text, axis.at(limit), layer_bars)


def _tensor_bars(comparison: ComparisonData) -> Bars:
    worst: dict[tuple[Kind, str], Judged] = {}
    for row in comparison.rows:
        key = row.difference.kind, row.difference.name
        worst[key] = max(worst.get(key, row), row, key=lambda judged: judged.severity)
    axis = Axis.over([1e-6, 1.0, *(row.severity for row in worst.values())], 0, 100)
    tensor_bars = [
        Bar(
            label=phrases.name(row.difference),
            kind=row.difference.kind.value,
            text=f"{phrases.short(row.severity)} of limit" if row.severity >= 0 else "noise",
            part=axis.at(row.severity),
            outcome=row.outcome,
            note=row.reason,
        )
        for row in worst.values()
    ]
    text = "How many times its limit each tensor is at its worst step, logarithmic, in order of computation."
    return Bars("Tensor by tensor", text, axis.at(1.0), tensor_bars)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    x: list[tuple[float, str]]
    y: Axis
    candidate: list[tuple[float, float]]
    envelope: list[tuple[float, float]]
    outside: float | None


def trajectory(curve: Curve) -> Trajectory:
    """Convert the curve to pixels. At most about 600 steps are drawn, including the first one outside."""
    y = Axis.over([*curve.candidate, *curve.low, *curve.high], CURVE_HEIGHT - 44, 14)
    first, last = curve.steps[0], max(curve.steps[-1], curve.steps[0] + 1)

    def x(step: int) -> float:
        return round(LEFT + (step - first) / (last - first) * (CURVE_WIDTH - 14 - LEFT), 1)

    # 600 steps in 720 pixels: more points would only make the file larger.
    every = max(1, math.ceil(len(curve.steps) / 600))
    drawn = [i for i, step in enumerate(curve.steps) if i % every == 0 or step == curve.first_outside]
    upper = [(x(curve.steps[i]), y.at(curve.high[i])) for i in drawn]
    lower = [(x(curve.steps[i]), y.at(curve.low[i])) for i in drawn]
    return Trajectory(
        x=[(x(step), str(step)) for step in _round_steps(first, last)],
        y=y,
        candidate=[(x(curve.steps[i]), y.at(curve.candidate[i])) for i in drawn],
        envelope=[*upper, *reversed(lower)],
        outside=None if curve.first_outside is None else x(curve.first_outside),
    )


def _round_steps(first: int, last: int) -> range:
    """Return about ten ticks at most: multiples of 1, 2 or 5 times a power of ten."""
    least = max(1.0, (last - first) / 10)
    power = 10 ** math.floor(math.log10(least))
    spacing = next(k * power for k in (1, 2, 5, 10) if k * power >= least)
    return range(math.ceil(first / spacing) * spacing, last + 1, spacing)
