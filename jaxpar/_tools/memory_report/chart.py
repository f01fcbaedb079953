"""The report as a bar chart. matplotlib is imported here and nowhere else."""

from __future__ import annotations

import os
from typing import Any

from .figures import PARTS, DeviceBytes, Figures, unit_of

# Okabe and Ito's colours: told apart by everyone; neighbours in a bar also differ in lightness.
COLOURS = dict(zip(PARTS, ("#0072B2", "#999999", "#56B4E9", "#009E73", "#F0E442", "#D55E00"), strict=True))
HEADROOM = 1.12
"""The axis over the highest bar, for the number that stands on it."""


def draw(report: Figures, path: str | os.PathLike[str]) -> None:
    """Two panels with one scale: what each device holds, by purpose, under either pattern."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "memory_report: plot needs matplotlib, which is not installed: pip install 'jaxpar[report]'."
        ) from error
    largest = max(d.total for held in report.patterns.values() for d in held)
    unit, scale = unit_of(largest)
    figure = Figure(figsize=(5 + 0.8 * max(len(report.torch), 4), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (name, held) in zip(panels, report.patterns.items(), strict=True):
        _bars(panel, held, scale)
        panel.set_title(name, fontsize=11)
        panel.set_xlabel("device")
    panels[0].set_ylabel(f"memory at its largest [{unit}]")
    panels[0].set_ylim(0, largest / scale * HEADROOM)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False)
    figure.suptitle(f"What one training step keeps on each device\n{report.subject}", fontsize=11.5)
    figure.savefig(path, dpi=150)


def _bars(panel: Any, held: tuple[DeviceBytes, ...], scale: int) -> None:
    names = [d.device for d in held]
    tops = [0.0] * len(held)
    for part, colour in COLOURS.items():
        heights = [getattr(d, part) / scale for d in held]
        panel.bar(names, heights, 0.72, tops, label=part, color=colour, edgecolor="white", linewidth=0.6)
        tops = [a + b for a, b in zip(tops, heights, strict=True)]
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for name, top in zip(names, tops, strict=True):
        panel.annotate(
            f"{top:.0f}" if top >= 100 else f"{top:.1f}",
            (name, top),
            (0, 4),
            textcoords="offset points",
            ha="center",
            bbox=behind,
        )
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="x", length=0, labelrotation=0 if len(held) <= 8 else 90)
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)
