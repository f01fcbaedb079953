"""The picture of an Estimate: a device's memory, and both lanes of its step."""

from __future__ import annotations

from typing import Any

from ..._metrics.chart import figure
from .schedule import COMPUTE, TimeSlot
from .step import PARTS
from .table import bars, number

EXCHANGE = "exchange"
KINDS = {
    "products, forward": "#332288",
    "products, backward": "#CC79A7",
    "other kernels": "#E3D4C0",
    EXCHANGE: "#882255",
}
"""Colours of the lanes, all different from the memory bar's, which have a different meaning."""
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
LOWEST_BAR = 0.02
"""Fraction of a device's memory below which the bar would be too low to see under the dashed line."""
THIN = 0.0008
"""Fraction of the step: shorter kernels are drawn this long, to be visible."""


def drawn(estimate: Any) -> Any:
    picture = figure("estimate", (12, 5))
    memory, lanes = picture.subplots(1, 2, width_ratios=(1, 4))
    _draw_memory(memory, estimate)
    _draw_lanes(lanes, estimate)
    for panel, columns in ((memory, 2), (lanes, 4)):
        legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12)}
        panel.legend(**legend, ncols=columns, frameon=False, fontsize=9)
    compiled = "" if not estimate.why else f" (compiled for {estimate.platform})"
    picture.suptitle(f"{estimate.subject}{compiled}: predicted, not measured")
    return picture


def _draw_memory(panel: Any, estimate: Any) -> None:
    scale, unit = next(((s, u) for s, u in UNITS if estimate.memory.total >= s), UNITS[-1])
    bars(panel, ["one device"], {part: [getattr(estimate.memory, part) / scale] for part in PARTS})
    room = f"JAX takes {number(estimate.room, 'B')}"
    if estimate.memory.total > LOWEST_BAR * estimate.room:
        panel.axhline(estimate.room / scale, color="black", linestyle="--", linewidth=1)
        room = f"dashed: {room}"
    panel.set_ylabel(f"memory [{unit}]; {room}")
    panel.set_xlim(-0.6, 0.6)


def _draw_lanes(panel: Any, estimate: Any) -> None:
    at_least = THIN * estimate.step
    exchanges = bool(estimate.schedule.exchanges)
    for kind, colour in KINDS.items():
        slots = [slot for slot in estimate.schedule.slots if _kind(slot) == kind]
        if not slots:
            continue
        row = 0.6 if kind == EXCHANGE else 1.6
        spans = [(slot.begin * 1e3, max(slot.seconds, at_least) * 1e3) for slot in slots]
        panel.broken_barh(spans, (row, 0.8), facecolors=colour, label=kind, linewidth=0)
    for slot in estimate.schedule.exchanges:
        if slot.seconds > 0.04 * estimate.step:
            panel.annotate(
                number(slot.bytes, "B"),
                ((slot.begin + slot.seconds / 2) * 1e3, 0.45),
                ha="center",
                fontsize=8,
            )
    panel.set_yticks(*([1.0, 2.0], [EXCHANGE, "computes"]) if exchanges else ([2.0], ["computes"]))
    panel.set_ylim(0.2 if exchanges else 1.4, 2.7)
    panel.set_xlim(0, estimate.step * 1e3)
    overlap = f"{estimate.schedule.overlap:.0%} of the exchange lies beside computation"
    panel.set_xlabel(f"ms; {overlap if exchanges else 'nothing is exchanged'}")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def _kind(slot: TimeSlot) -> str:
    if slot.lane != COMPUTE:
        return EXCHANGE
    if not slot.flops:
        return "other kernels"
    return "products, backward" if "transpose(" in slot.origin else "products, forward"
