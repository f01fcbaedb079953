"""The estimate as a picture. matplotlib is imported here and nowhere else."""

from __future__ import annotations

import os
from typing import Any

from .count import PARTS
from .figures import Figures

# Okabe and Ito's colours: told apart by everyone.
COLOURS = dict(zip(PARTS, ("#0072B2", "#999999", "#56B4E9", "#009E73", "#F0E442", "#D55E00"), strict=True))


def draw(found: Figures, path: str | os.PathLike[str]) -> None:
    """Left, what a device holds; right, the step's parts and the efficiency on n devices."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "estimate: plot needs matplotlib, which is not installed: pip install 'jaxpar[report]'."
        ) from error
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    memory, times = figure.subplots(1, 2, width_ratios=(1, 2))
    _memory(memory, found)
    _times(times, found)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle(
        f"{found.model}, {found.rows} rows on each {found.hardware.name}: predicted, not measured"
    )
    figure.savefig(path, dpi=150)


def _memory(panel: Any, found: Figures) -> None:
    bottom = 0.0
    for part, colour in COLOURS.items():
        height = getattr(found.memory, part) / 1e9
        panel.bar(["one device"], [height], 0.5, [bottom], label=part, color=colour, edgecolor="white")
        bottom += height
    panel.axhline(found.hardware.memory / 1e9, color="black", linestyle="--", linewidth=1)
    panel.set_ylabel("memory [GB]; dashed: there is")
    panel.set_xlim(-0.6, 0.6)


def _times(panel: Any, found: Figures) -> None:
    names = [str(p.devices) for p in found.points]
    computing = [p.computing * 1e3 for p in found.points]
    waiting = [p.waiting * 1e3 for p in found.points]
    panel.bar(names, computing, 0.7, color="#0072B2", label="computing")
    panel.bar(names, waiting, 0.7, computing, color="#D55E00", label="waiting for all-reduce")
    panel.set_xlabel("devices")
    panel.set_ylabel("step [ms]")
    right = panel.twinx()
    right.plot(names, [100 * p.efficiency for p in found.points], "o-", color="black", label="efficiency")
    right.set_ylim(0, 105)
    right.set_ylabel("efficiency [%]")
