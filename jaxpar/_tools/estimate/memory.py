"""`MemoryReport`: bytes by device and purpose, with their sources, as a table or a picture."""

from __future__ import annotations

import dataclasses
import io
import os
import textwrap
from typing import Any

from rich.console import Console

from ..._metrics.chart import figure, save
from .table import bars, table

HEADROOM = 1.12
"""The picture's axis over its highest bar, to leave space for the number on top."""

PARTS = ("parameters", "buffers", "optimizer", "gradients", "activations", "outputs")

TORCH = "torch.nn.DataParallel"
JAXPAR = "jaxpar.DataParallel inside jax.jit"
DIVIDED = "jaxpar.DistributedDataParallel with shard_optimizer"

_PROGRAM = (
    "from one forward and backward program compiled for all devices. Parameters, buffers, gradients and "
    "outputs: by its shardings (rows that do not divide evenly come out of jax.jit whole, on every "
    "device). Activations: all temporary bytes of its memory analysis; each replica's gradients before "
    "they are summed are among them. "
)

SOURCES = {
    TORCH: (
        "by torch's rules, from shapes. Parameters and buffers are copied to every device that gets rows, "
        "the optimizer's state is on the first. Every replica has gradients, and the first device their sum "
        "as well. Outputs are each replica's rows, and on the first device all rows once more. Activations: "
        "XLA's temporary bytes of one replica's compiled forward and backward program and the gradient of "
        "its outputs; the first device has the temporary bytes of the loss and the gradient of all outputs "
        "instead of the latter."
    ),
    JAXPAR: _PROGRAM + "The optimizer's state is replicated like the parameters.",
    DIVIDED: (
        _PROGRAM + "It is that of a DataParallel. Each device has its part of every array of the "
        "optimizer's state, and arrays of one number whole."
    ),
}
CAVEAT = "Every column is what that purpose takes at its largest, and not all are there at the same instant."


@dataclasses.dataclass(frozen=True)
class DeviceBytes:
    device: str
    parameters: int
    buffers: int
    optimizer: int
    gradients: int
    activations: int
    outputs: int

    @property
    def parts(self) -> list[int]:
        return [getattr(self, part) for part in PARTS]

    @property
    def total(self) -> int:
        return sum(self.parts)


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """A training step's memory on each device, under torch's DataParallel and jaxpar's inside `jax.jit`.

    Attributes:
      torch, jaxpar: the devices under either pattern.
      model: the name of the module's class.
      sizes: rows of each replica.
      kind: the kind of device that the programs were compiled for.
      compiled_step: XLA's figure for jaxpar's complete step, on every device, with the optimizer's update.
      shard_optimizer: whether jaxpar's replicas divide the optimizer's state.

    ```python
    report = jaxpar.memory_report(net, x, optimizer=optax.adam(1e-3))
    print(report.table())
    ```
    """

    torch: tuple[DeviceBytes, ...]
    jaxpar: tuple[DeviceBytes, ...]
    model: str
    sizes: tuple[int, ...]
    kind: str
    compiled_step: int
    shard_optimizer: bool = False

    @property
    def _name(self) -> str:
        return DIVIDED if self.shard_optimizer else JAXPAR

    @property
    def patterns(self) -> dict[str, tuple[DeviceBytes, ...]]:
        return {TORCH: self.torch, self._name: self.jaxpar}

    @property
    def subject(self) -> str:
        """The model, rows and devices, in one line."""
        even = len(set(self.sizes)) == 1 and len(self.sizes) == len(self.torch)
        rows = f"{self.sizes[0]} each" if even else "+".join(map(str, self.sizes))
        where = f"{len(self.torch)} devices ({rows}), compiled for {self.kind}"
        return f"{self.model}, {sum(self.sizes)} rows on {where}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, in bytes."""
        return {
            "model": self.model,
            "sizes": list(self.sizes),
            "kind": self.kind,
            "unit": "bytes",
            "torch": [dataclasses.asdict(d) | {"total": d.total} for d in self.torch],
            "jaxpar": [dataclasses.asdict(d) | {"total": d.total} for d in self.jaxpar],
            "compiled_step": self.compiled_step,
            "sources": {"torch": SOURCES[TORCH], "jaxpar": SOURCES[self._name], "both": CAVEAT},
        }

    @property
    def _largest(self) -> int:
        return max(d.total for devices in self.patterns.values() for d in devices)

    def table(self) -> str:
        """Return both patterns as text, with the numbers' sources."""
        unit, scale = unit_of(self._largest)
        console = Console(file=(text := io.StringIO()), width=110)
        console.print(f"What one training step keeps on each device: {self.subject}")
        for name, devices in self.patterns.items():
            rows = [[d.device, *(f"{n / scale:.1f}" for n in (*d.parts, d.total))] for d in devices]
            console.print(f"\n{name}, {unit}")
            console.print(table(("device", *PARTS, "total"), rows))
            console.print(_imbalance(devices))
        caveat = (
            f"{CAVEAT} XLA's sum for the whole compiled step of {self._name}, arguments and update included: "
            f"{self.compiled_step / scale:.1f} {unit} on each device."
        )
        console.print()
        for note in (*(f"{name}: {SOURCES[name]}" for name in self.patterns), caveat):
            console.print(textwrap.fill(note, 105, subsequent_indent="  "))
        return text.getvalue().rstrip()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw each device's memory; the suffix of `path` selects the format (`.png`, `.svg`, `.pdf`).

        Raises:
          ImportError: matplotlib is not installed.
        """
        unit, scale = unit_of(self._largest)
        picture = figure("memory_report", (5 + 0.8 * max(len(self.torch), 4), 5.6))
        panels = picture.subplots(1, 2, sharey=True)
        for panel, (name, devices) in zip(panels, self.patterns.items(), strict=True):
            _draw(panel, devices, scale)
            panel.set_title(name, fontsize=11)
            panel.set_xlabel("device")
        panels[0].set_ylabel(f"memory at its largest [{unit}]")
        panels[0].set_ylim(0, self._largest / scale * HEADROOM)
        handles, labels = panels[0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        picture.suptitle(f"What one training step keeps on each device\n{self.subject}", fontsize=11.5)
        save(picture, path)


def _imbalance(devices: tuple[DeviceBytes, ...]) -> str:
    others = [d.total for d in devices[1:]]
    if not others:
        return "one device"
    if all(n == devices[0].total for n in others):
        return "all devices hold the same"
    first = devices[0]
    return f"{first.device} holds {first.total / max(*others, 1):.1f} x what the fullest other one does"


def _draw(panel: Any, devices: tuple[DeviceBytes, ...], scale: int) -> None:
    names = [d.device for d in devices]
    heights = ([n / scale for n in d.parts] for d in devices)
    tops = bars(panel, names, dict(zip(PARTS, zip(*heights, strict=True), strict=True)))
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for name, top in zip(names, tops, strict=True):
        text = f"{top:.0f}" if top >= 100 else f"{top:.1f}"
        panel.annotate(text, (name, top), (0, 4), textcoords="offset points", ha="center", bbox=background)
    panel.tick_params(axis="x", length=0, labelrotation=0 if len(devices) <= 8 else 90)


def unit_of(largest: int) -> tuple[str, int]:
    """Return a readable unit for a number of bytes, and the unit's size in bytes."""
    units = [("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)]
    return next((u for u in reversed(units) if largest >= u[1]), units[0])
