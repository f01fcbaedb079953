"""Pictures. matplotlib is optional and slow to import, so this file alone imports it."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _stamp
from ..errors import MetricError

FOOT = 6.5
"""Font size of the footer in points; a letter is about 0.6 of this size wide."""


def figure(function: str, size: tuple[float, float]) -> Any:
    """Return an empty matplotlib figure of a size in inches, which needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"{function}: plot needs matplotlib, which is not installed: pip install 'jaxpar[report]'."
        ) from error
    chart = Figure(figsize=size, layout="constrained")
    # Not pyplot, which keeps figures and may open windows.
    FigureCanvasAgg(chart)
    return chart


def tidy(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)


def save(chart: Any, path: str | os.PathLike[str], *notes: str) -> None:
    """Write a figure with a footer of notes, date, versions and command; SOURCE_DATE_EPOCH sets the date."""
    import matplotlib

    letters = int(chart.get_figwidth() * 72 / (0.6 * FOOT))
    lines = [textwrap.fill(text, letters) for text in (*notes, _stamp.line())]
    chart.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=FOOT, color="#666666")
    # With matplotlib's random salt the ids of an SVG, and so the file, would differ from run to run.
    with matplotlib.rc_context({"svg.hashsalt": "jaxpar"}):
        chart.savefig(path, dpi=150)


def draw(columns: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Plot the metrics over the steps; the footer names those without a number."""
    metrics = {name: column for name, column in columns.items() if name != "step"}
    finite = {name: column for name, column in metrics.items() if np.isfinite(column).any()}
    if not finite:
        raise MetricError(f"MetricsLog.plot: none of {len(metrics)} metrics has a finite number to draw.")
    empty = ", ".join(name for name in metrics if name not in finite)
    save(panels(columns["step"], finite), path, *([f"no finite number: {empty}"] if empty else []))


def panels(steps: np.ndarray, metrics: Mapping[str, np.ndarray]) -> Any:
    """Return a figure with a panel for each metric over the steps, up to three in a row."""
    across = 2 if len(metrics) == 4 else min(len(metrics), 3)
    down = math.ceil(len(metrics) / across)
    chart = figure("MetricsLog", (4.2 * across, 3 * down))
    grid = chart.subplots(down, across, squeeze=False).flat
    for panel, (name, column) in zip(grid, metrics.items(), strict=False):
        finite = np.isfinite(column)
        style = ".-" if finite.sum() < 50 else "-"  # a single point has no line
        panel.plot(steps[finite], column[finite], style, color="#0072B2", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("step")
        tidy(panel)
    for panel in grid[len(metrics) :]:
        panel.remove()
    return chart
