"""What was found and predicted: numbers, and nothing that shows them."""

from __future__ import annotations

import dataclasses
from typing import Any

from .count import Memory, Traffic, Work
from .hardware import Hardware
from .scaling import Point


@dataclasses.dataclass(frozen=True)
class Figures:
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
