"""What was found and predicted, as a value."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from .count import Memory, Traffic, Work
from .hardware import Hardware
from .scaling import Point


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
        """The same as a JSON document."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture; the ending of `path` says the format (`.png`, `.svg`, `.pdf`).

        Raises:
          ImportError: matplotlib is not installed.
        """
        from .chart import draw

        draw(self, path)

    def __rich__(self) -> Any:
        from .table import text

        return text(self)
