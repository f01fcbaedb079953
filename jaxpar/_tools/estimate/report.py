"""`Estimate`: a prediction's figures, as a table, a picture or JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ..._metrics.chart import save
from .hardware import Hardware
from .largest import Largest
from .picture import drawn
from .scaling import ScalingPoint
from .schedule import COMPUTE, LaneSchedule, TimeSlot
from .step import PARTS, Memory
from .table import number, table

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

    def longest(self, n: int = LARGEST) -> list[TimeSlot]:
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
