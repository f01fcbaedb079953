"""Pictures. matplotlib is optional and slow to import, so this file alone imports it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np


def figure(function: str, size: tuple[float, float]) -> Any:
    """An empty matplotlib figure of so many inches, which needs no display.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"{function}: plot needs matplotlib, which is not installed: pip install 'jaxpar[report]'."
        ) from error
    made = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(made)  # and not pyplot, which keeps figures and may open windows
    return made


def tidy(panel: Any) -> None:
    """Light lines behind the numbers, and no frame."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)


def draw(columns: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Draws a panel for each metric over the steps, up to three side by side."""
    names = [name for name in columns if name != "step"]
    across = min(max(len(names), 1), 3)
    down = max(math.ceil(len(names) / across), 1)
    made = figure("MetricsLog", (4.2 * across, 3 * down))
    panels = made.subplots(down, across, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        there = np.isfinite(columns[name])
        style = ".-" if there.sum() < 50 else "-"  # a single point has no line
        panel.plot(columns["step"][there], columns[name][there], style, color="#0072B2", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("step")
        tidy(panel)
    for panel in list(made.axes)[len(names) :]:
        panel.set_visible(False)
    made.savefig(path, dpi=150)
