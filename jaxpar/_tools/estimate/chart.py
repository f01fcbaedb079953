"""Stacked bars of both reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._metrics.chart import tidy

# Okabe and Ito's palette, which is safe for the colour-blind; neighbours in a bar also differ in lightness.
COLOURS = ("#0072B2", "#999999", "#56B4E9", "#009E73", "#F0E442", "#D55E00")


def bars(
    panel: Any, names: Sequence[str], parts: Mapping[str, Sequence[float]], colours: Sequence[str] = COLOURS
) -> list[float]:
    """Draw a bar for each name and return the heights. A part that is 0 everywhere is not in the legend."""
    tops = [0.0] * len(names)
    for (part, heights), colour in zip(parts.items(), colours, strict=True):
        panel.bar(
            names,
            heights,
            0.72,
            tops,
            label=part if any(heights) else "_",
            color=colour,
            edgecolor="white",
            linewidth=0.6,
        )
        tops = [a + b for a, b in zip(tops, heights, strict=True)]
    tidy(panel)
    return tops
