"""Estimate: the figures of a training step on every number of devices, and the ways to show them."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from rich.console import Group, RenderableType

from ..._metrics.chart import figure
from .chart import COLOURS, bars
from .count import COMPILED, PARTS, Memory, Traffic, Work
from .hardware import Hardware
from .scaling import Point
from .table import number, table


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step on every number of devices, in bytes and seconds.

    Attributes:
      model: the name of the module's class. rows: of one device.
      platform: what the programs were compiled for.
      hardware: the rates of the prediction.
      memory, work, traffic: what a device holds, does and exchanges in one step.
      efficiency: the part of the peak rates that was assumed.
      overlap: the part of the communication that was assumed to lie beside computation.
      points: the prediction for each number of devices.
    """

    model: str
    rows: int
    platform: str
    hardware: Hardware
    memory: Memory
    work: Work
    traffic: Traffic
    efficiency: float
    overlap: float
    points: tuple[Point, ...]

    @property
    def fits(self) -> bool:
        """Whether one device has room for the step, by either sum."""
        return max(self.memory.total, self.memory.compiled_step) <= self.hardware.memory

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, in bytes, operations and seconds."""
        found = dataclasses.asdict(self)
        found["memory"]["total"] = self.memory.total
        found["fits"] = self.fits
        return found

    def to_json(self) -> str:
        """The figures as a JSON document."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture; the ending of `path` says the format (`.png`, `.svg`, `.pdf`).

        Left, what a device holds; right, the step's parts and the efficiency on n devices.

        Raises:
          ImportError: matplotlib is not installed.
        """
        picture = figure("estimate", (11, 5))
        memory, times = picture.subplots(1, 2, width_ratios=(1, 2))
        bars(memory, ["one device"], {part: [getattr(self.memory, part) / 1e9] for part in PARTS})
        memory.axhline(self.hardware.memory / 1e9, color="black", linestyle="--", linewidth=1)
        memory.set_ylabel("memory [GB]; dashed: there is")
        memory.set_xlim(-0.6, 0.6)
        self._plot_times(times)
        picture.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
        picture.suptitle(
            f"{self.model}, {self.rows} rows on each {self.hardware.name}: predicted, not measured"
        )
        picture.savefig(path, dpi=150)

    def _plot_times(self, panel: Any) -> None:
        names = [str(p.devices) for p in self.points]
        parts = {
            "computing": [p.computing * 1e3 for p in self.points],
            "waiting for all-reduce": [p.waiting * 1e3 for p in self.points],
        }
        bars(panel, names, parts, (COLOURS[0], COLOURS[-1]))
        panel.set_xlabel("devices")
        panel.set_ylabel("step [ms]")
        right = panel.twinx()
        percent = [100 * p.efficiency for p in self.points]
        right.plot(names, percent, "o-", color="black", label="efficiency")
        right.set_ylim(0, 105)
        right.set_ylabel("efficiency [%]")

    def __rich__(self) -> RenderableType:
        heading = f"{self.model}, {self.rows} rows on each {self.hardware.name}, compiled for {self.platform}"
        return Group(heading, "", self._memory(), "", self._scaling(), "", *self._notes())

    def _memory(self) -> RenderableType:
        held = [getattr(self.memory, part) for part in PARTS]
        row = [number(n, "B") for n in (*held, self.memory.total, self.hardware.memory)]
        return table((*PARTS, "total", "of"), [row])

    def _scaling(self) -> RenderableType:
        columns = ("devices", "hosts", "computing", "all-reduce", "waiting", "step", "efficiency", "rows/s")
        rows = []
        for p in self.points:
            times = [number(t, "s") for t in (p.computing, p.communicating, p.waiting, p.step)]
            last = f"{p.efficiency:.1%}", number(p.rows_per_second)
            rows.append((str(p.devices), str(p.hosts), *times, *last))
        return table(columns, rows)

    def _notes(self) -> list[str]:
        hardware, work, traffic = self.hardware, self.work, self.traffic
        source = "the compiled step" if traffic.source == COMPILED else "shapes (one device to compile for)"
        room = "" if self.fits else f" This is more than the {number(hardware.memory, 'B')} of one device."
        link = f"link {number(hardware.link, 'B/s')} and {number(hardware.latency, 's')}"
        network = f"{number(hardware.network, 'B/s')} and {number(hardware.network_latency, 's')}"
        rate = hardware.rate(work.kind)
        return [
            f"XLA's sum for the whole compiled step: {number(self.memory.compiled_step, 'B')}.{room}",
            f"A step is {number(work.flops, 'FLOP')} in {work.kind}, {number(work.flops / rate, 's')} at the "
            f"peak, and {number(work.bytes, 'B')} of memory traffic, "
            f"{number(work.bytes / hardware.bandwidth, 's')} at the peak; "
            f"all-reduces: {traffic.count} with {number(traffic.bytes, 'B')}, from {source}.",
            f"Rates: {number(rate, 'FLOP/s')}, memory {number(hardware.bandwidth, 'B/s')}, "
            f"{link}, network of {hardware.per_host} devices {network}; efficiency {self.efficiency:g}, "
            f"overlap {self.overlap:g}.",
            "A prediction from peak rates, not a measurement: an upper bound of speed.",
        ]
