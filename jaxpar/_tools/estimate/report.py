"""`Estimate`: a prediction's figures, as a table, a picture or JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ..._arguments import Count
from ..._metrics.chart import figure, save
from .hardware import Hardware
from .largest import Largest
from .program import PARTS, Memory
from .schedule import COMPUTE, LaneSchedule, ScalingPoint, TimeSlot
from .table import bars, number, table

LARGEST = 8
"""The number of operations in the table."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Communication in one step: the number of collectives, and their bytes on each device."""

    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A prediction for a training step on hosts x devices GPUs, in bytes and seconds.

    Attributes:
      model: the name of the module's class. rows: per device.
      devices: per host. hosts: the number of hosts.
      platform: the kind of device that the program was compiled for.
      why: empty if that is the card; otherwise why it is not (the figures are then this host's compiler's).
      hardware: the rates of the prediction. room: bytes of a device that JAX reserves.
      memory: bytes on a device. schedule: the time of each kernel and each collective.
      uncounted: library functions of which only the bytes are counted.
      points: the prediction for each number of devices; the last is for all.
      largest_batch: the most rows per device that fit; None without `watch_batch`.

    ```python
    print(prediction)                 # tables
    prediction.plot("step.png")       # memory and both lanes
    json.loads(prediction.to_json())  # the figures
    ```
    """

    model: str
    rows: int
    devices: int
    hosts: int
    platform: str
    why: str
    hardware: Hardware
    room: float
    memory: Memory
    schedule: LaneSchedule
    uncounted: tuple[str, ...]
    points: tuple[ScalingPoint, ...]
    largest_batch: Largest | None

    @property
    def step(self) -> float:
        """Predicted seconds of a step on all devices."""
        return self.schedule.step

    @property
    def rows_per_second(self) -> float:
        return self.points[-1].rows_per_second

    @property
    def free(self) -> float:
        """Reserved bytes that the step does not use; negative if the step does not fit."""
        return self.room - self.memory.total

    @property
    def fits(self) -> bool:
        return self.free >= 0

    @property
    def traffic(self) -> Traffic:
        exchanges = self.schedule.exchanges
        return Traffic(len(exchanges), int(sum(slot.bytes for slot in exchanges)))

    def longest(self, n: Count = LARGEST) -> list[TimeSlot]:
        """Return the kernels that take most of the step; equal ones from the same operation are summed."""
        alike: dict[tuple, TimeSlot] = {}
        for slot in self.schedule.slots:
            if slot.lane == COMPUTE:
                # A layer that repeats has one operation per repetition; in one row each they would fill the
                # table.
                key = slot.origin or slot.name, slot.flops, slot.bytes
                sums = {name: getattr(slot, name) for name in ("seconds", "flops", "bytes")}
                if more := alike.get(key):
                    sums = {name: getattr(more, name) + value for name, value in sums.items()}
                alike[key] = dataclasses.replace(more or slot, **sums)
        return sorted(alike.values(), key=lambda slot: -slot.seconds)[:n]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, in bytes, operations and seconds."""
        values = dataclasses.asdict(self)
        values["memory"]["total"] = self.memory.total
        values |= {name: getattr(self, name) for name in ("fits", "free", "step", "rows_per_second")}
        values["traffic"] = dataclasses.asdict(self.traffic) | {"overlap": self.schedule.overlap}
        return values

    def to_json(self) -> str:
        """Return the figures as a JSON document."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw memory and both lanes; the suffix of `path` selects the format (`.png`, `.svg`, `.pdf`).

        Raises:
          ImportError: matplotlib is not installed.
        """
        save(drawn(self), path)

    @property
    def subject(self) -> str:
        """The model, rows and devices, in one line."""
        where = f"{self.devices} {self.hardware.name}" + (
            f" on each of {self.hosts} hosts" if self.hosts > 1 else ""
        )
        return f"{self.model}, {self.rows} rows on each of {where}"

    def __rich__(self) -> RenderableType:
        counts = [getattr(self.memory, part) for part in PARTS]
        row = [number(n, "B") for n in (*counts, self.memory.total, abs(self.free))]
        memory = table((*PARTS, "peak", "free" if self.fits else "missing"), [row])
        parts = [memory, self._exchanges(), self._longest(), self._scaling()]
        shown = [piece for part in parts for piece in ("", part)]
        # As `Text`, because rich would read the "[gpu-compiler]" in a warning as a style.
        above = map(Text, (f"{self.subject}, compiled for {self.platform}", *self._warnings()))
        return Group(*above, *shown, "", *map(Text, self._notes()))

    def _exchanges(self) -> RenderableType:
        exchanges, traffic = self.schedule.exchanges, self.traffic
        if not exchanges:
            return "One device exchanges nothing."
        sizes = ", ".join(number(slot.bytes, "B") for slot in exchanges[:8]) + ", ..." * (len(exchanges) > 8)
        return (
            f"{traffic.count} collective{'s' * (traffic.count > 1)} of "
            f"{number(traffic.bytes, 'B')} ({sizes}): "
            f"{number(self.schedule.communicating, 's')}, {self.schedule.overlap:.0%} of it beside "
            "computation."
        )

    def _longest(self) -> RenderableType:
        rows = []
        for slot in self.longest():
            time = number(slot.seconds, "s"), f"{slot.seconds / self.step:.1%}"
            work = number(slot.flops, "FLOP"), number(slot.bytes, "B")
            rows.append((escape(slot.origin or slot.name), *time, *work))
        return table(("largest operations", "time", "of the step", "products", "memory traffic"), rows)

    def _scaling(self) -> RenderableType:
        columns = ("devices", "hosts", "computing", "exchange", "waiting", "step", "efficiency", "rows/s")
        rows = []
        for p in self.points:
            times = [number(t, "s") for t in (p.computing, p.communicating, p.waiting, p.step)]
            last = f"{p.efficiency:.1%}", number(p.rows_per_second)
            rows.append((str(p.devices), str(p.hosts), *times, *last))
        return table(columns, rows)

    def _warnings(self) -> list[str]:
        if not self.why:
            return []
        return [
            f"NOT THE CARD'S PROGRAM: {self.why}.",
            "Bytes, kernels and their order are those of this host's compiler, which fuses less and overlaps "
            "nothing.",
        ]

    def _notes(self) -> list[str]:
        hardware = self.hardware
        notes = [f"JAX takes {number(self.room, 'B')} of the {number(hardware.memory, 'B')} of a device."]
        if not self.fits:
            notes[0] += f" The step needs {number(self.memory.total, 'B')} and does not fit."
        if most := self.largest_batch:
            bound = "" if most.sure else ", perhaps more"
            notes.append(
                f"Largest batch: {most.rows} rows on each device with {number(most.peak, 'B')}{bound}; "
                f"compiled for {most.compiles} other numbers of rows."
            )
        flops = ", ".join(f"{number(rate, 'FLOP/s')} in {kind}" for kind, rate in hardware.flops.items())
        notes += [
            f"Assumed: {hardware.products:.0%} of {flops}; {hardware.streaming:.0%} of "
            f"{number(hardware.bandwidth, 'B/s')}; {number(hardware.kernel, 's')} to start a kernel; "
            f"{hardware.exchanging:.0%} of a link's {number(hardware.link, 'B/s')} and of a host's network's "
            f"{number(hardware.network, 'B/s')}, {number(hardware.latency, 's')} and "
            f"{number(hardware.network_latency, 's')} for a step of a ring there, "
            f"{number(hardware.collective, 's')} to start a collective.",
            "A prediction, not a measurement: no input pipeline, no Python, no slow neighbour; collectives "
            "slow no kernel.",
        ]
        if self.uncounted:
            notes.append(f"Only the bytes are counted of: {', '.join(self.uncounted)}.")
        return notes


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
