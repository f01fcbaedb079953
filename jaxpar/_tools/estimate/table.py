"""Tables, numbers and stacked bars of both reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from ..._metrics.chart import tidy


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        grid.add_column(column, justify="right")
    for row in rows:
        grid.add_row(*row)
    return grid


def number(value: float, unit: str = "") -> str:
    """Format a number with an SI prefix and three digits."""
    prefixes = [("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)]
    prefixes += [("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)]
    if value == 0:
        return f"0 {unit}".rstrip()
    # 999.9 would be written 1.00e+03, so what rounds up takes the next prefix.
    prefix, scale = next((p for p in prefixes if value >= 0.9995 * p[1]), prefixes[-1])
    short = f"{value / scale:.3g}"
    return f"{short} {prefix}{unit}".rstrip()


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
