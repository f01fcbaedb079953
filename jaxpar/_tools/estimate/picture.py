"""picture: what a device holds, and both lanes of its step."""

from __future__ import annotations

import os
from typing import Any

from ..._metrics.chart import figure
from .chart import COLOURS, bars
from .schedule import COMPUTE, Slot
from .step import PARTS
from .table import number

KINDS = {
    "products, forward": COLOURS[0],
    "products, backward": COLOURS[2],
    "other kernels": COLOURS[1],
    "exchange": COLOURS[5],
}
THIN = 0.0008
"""Of the step: shorter kernels are drawn this long, or nobody would see them."""


def draw(found: Any, path: str | os.PathLike[str]) -> None:
    """Writes the picture of an Estimate."""
    picture = figure("estimate", (12, 5))
    memory, lanes = picture.subplots(1, 2, width_ratios=(1, 4))
    bars(memory, ["one device"], {part: [getattr(found.memory, part) / 1e9] for part in PARTS})
    memory.axhline(found.room / 1e9, color="black", linestyle="--", linewidth=1)
    memory.set_ylabel("memory [GB]; dashed: what JAX takes")
    memory.set_xlim(-0.6, 0.6)
    _draw_lanes(lanes, found)
    for panel, columns in ((memory, 2), (lanes, 4)):  # one each, since they share colours
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12)}
        panel.legend(**below, ncols=columns, frameon=False, fontsize=9)
    compiled = "" if not found.why else f" (compiled for {found.platform})"
    picture.suptitle(f"{found.subject}{compiled}: predicted, not measured")
    picture.savefig(path, dpi=150)


def _draw_lanes(panel: Any, found: Any) -> None:
    """Time to the right; above what the device computes, below what it exchanges."""
    at_least = THIN * found.step
    for kind, colour in KINDS.items():
        slots = [slot for slot in found.schedule.slots if _kind(slot) == kind]
        row = 0.6 if kind == "exchange" else 1.6
        spans = [(slot.begin * 1e3, max(slot.seconds, at_least) * 1e3) for slot in slots]
        panel.broken_barh(spans, (row, 0.8), facecolors=colour, label=kind, linewidth=0)
    for slot in found.schedule.exchanges:
        if slot.seconds > 0.04 * found.step:
            panel.annotate(
                number(slot.bytes, "B"),
                ((slot.begin + slot.seconds / 2) * 1e3, 0.45),
                ha="center",
                fontsize=8,
            )
    panel.set_yticks([1.0, 2.0], ["exchange", "computes"])
    panel.set_ylim(0.2, 2.7)
    panel.set_xlim(0, found.step * 1e3)
    panel.set_xlabel(f"ms; {found.schedule.overlap:.0%} of the exchange lies beside computation")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def _kind(slot: Slot) -> str:
    if slot.lane != COMPUTE:
        return "exchange"
    if not slot.flops:
        return "other kernels"
    return "products, backward" if "transpose(" in slot.origin else "products, forward"
