"""The curves of a log. matplotlib is optional and slow to import, so this file alone imports it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np


def draw(columns: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Draws a panel for each metric over the steps, up to three side by side."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "MetricsLog: plot needs matplotlib, which is not installed: pip install 'jaxpar[report]'."
        ) from error
    names = [name for name in columns if name != "step"]
    across = min(max(len(names), 1), 3)
    down = max(math.ceil(len(names) / across), 1)
    figure = Figure(figsize=(4.2 * across, 3 * down), layout="constrained")
    FigureCanvasAgg(figure)  # and not pyplot, which keeps figures and may open windows
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        there = np.isfinite(columns[name])
        style = ".-" if there.sum() < 50 else "-"  # a single point has no line
        panel.plot(columns["step"][there], columns[name][there], style, color="#0072B2", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.8)
        panel.set_axisbelow(True)
    for panel in list(figure.axes)[len(names) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=150)
