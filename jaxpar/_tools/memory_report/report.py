"""MemoryReport: the bytes of a training step, and the ways to show them."""

from __future__ import annotations

import os
import textwrap

from . import chart
from .figures import CAVEAT, JAXPAR, PARTS, SOURCES, TORCH, DeviceBytes, Figures, unit_of


class MemoryReport(Figures):
    __doc__ = Figures.__doc__

    def table(self) -> str:
        """Both patterns as text, and where the numbers come from."""
        unit, scale = unit_of(max(d.total for ds in self.patterns.values() for d in ds))
        lines = [f"What one training step keeps on each device: {self.subject}", ""]
        for name, held in self.patterns.items():
            lines += [f"{name}, {unit}", *_columns(held, scale), _imbalance(held), ""]
        lines += _wrapped(f"{TORCH}: {SOURCES[TORCH]}") + _wrapped(f"{JAXPAR}: {SOURCES[JAXPAR]}")
        step = self.compiled_step / scale
        lines += _wrapped(
            f"{CAVEAT} XLA's sum for the whole compiled step of {JAXPAR}, arguments and update included: "
            f"{step:.1f} {unit} on each device."
        )
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a bar chart; the ending of `path` says the format (`.png`, `.svg`, `.pdf`).

        Raises:
          ImportError: matplotlib is not installed.
        """
        chart.draw(self, path)


def _columns(held: tuple[DeviceBytes, ...], scale: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("device", *PARTS, "total")]
    for d in held:
        numbers = [*(getattr(d, part) for part in PARTS), d.total]
        rows.append((d.device, *(f"{n / scale:.1f}" for n in numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"  {row[0]:{widths[0]}}" + "".join(f"  {c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _imbalance(held: tuple[DeviceBytes, ...]) -> str:
    others = [d.total for d in held[1:]]
    if not others:
        return "  one device"
    if all(n == held[0].total for n in others):
        return "  all devices hold the same"
    return f"  {held[0].device} holds {held[0].total / max(*others, 1):.1f} x what the fullest other one does"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 105, subsequent_indent="  ")
