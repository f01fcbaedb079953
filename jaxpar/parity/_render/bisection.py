"""Render a bisection of two training runs as one HTML file, with a curve for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .._comparison_data import Curve
from . import html, plots


class Distances(Protocol):
    steps: Sequence[int]
    distances: Sequence[float]
    allowed: Sequence[float]


def dumps(bisection: Any) -> str:
    """Return the page of a Bisection. It is also valid XML."""
    view = {"bisection": bisection, "headline": bisection.headline(), "curves": _curves(bisection.curves)}
    return html.rendered("bisection.html.j2", view)


def _curves(parts: Mapping[str, Distances]) -> list[tuple[str, Curve, plots.Trajectory]]:
    curves = []
    for part, distances in parts.items():
        # Rows are the same or not, without a distance.
        if part == "batch" or not any(x > 0 for x in distances.distances):
            continue
        steps, values, allowed = tuple(distances.steps), tuple(distances.distances), tuple(distances.allowed)
        outside = next((k for k, d, most in zip(steps, values, allowed, strict=True) if not d <= most), None)
        curve = Curve(steps, values, (0.0,) * len(steps), allowed, first_outside=outside)
        curves.append((part, curve, plots.trajectory(curve)))
    return curves
