"""What was found: bytes by device and purpose, and where the numbers come from."""

from __future__ import annotations

import dataclasses
from typing import Any

PARTS = ("parameters", "buffers", "optimizer", "gradients", "activations", "outputs")

TORCH = "torch.nn.DataParallel"
JAXPAR = "jaxpar.DataParallel inside jax.jit"

SOURCES = {
    TORCH: (
        "by torch's rules, from shapes. Parameters and buffers are copied to every device that gets rows, "
        "the optimizer's state is on the first. Every replica has gradients, and the first device their sum "
        "as well. Outputs are each replica's rows, and on the first device all rows once more. Activations: "
        "XLA's temporary bytes of one replica's compiled forward and backward program and the gradient of "
        "its outputs; the first device has the temporary bytes of the loss and the gradient of all outputs "
        "instead of the latter."
    ),
    JAXPAR: (
        "from one forward and backward program compiled for all devices. Parameters, buffers, gradients and "
        "outputs: by its shardings (rows that do not divide evenly come out of jax.jit whole, on every "
        "device). Activations: all temporary bytes of its memory analysis; each replica's gradients before "
        "they are summed are among them. The optimizer's state is replicated like the parameters."
    ),
}
CAVEAT = "Every column is what that purpose takes at its largest, and not all are there at the same instant."


@dataclasses.dataclass(frozen=True)
class DeviceBytes:
    """Bytes on one device, by purpose."""

    device: str
    parameters: int
    buffers: int
    optimizer: int
    gradients: int
    activations: int
    outputs: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a training step keeps on each device.

    Attributes:
      torch: the devices under torch's DataParallel: outputs, loss and optimizer on the first one.
      jaxpar: the devices under jaxpar's inside `jax.jit`: everything stays where it is.
      model: the name of the module's class.
      sizes: rows of each replica.
      kind: of the devices; the programs were compiled for it.
      compiled_step: XLA's figure for the whole compiled step of jaxpar, on every device: arguments,
        results and temporary bytes together, the update included if there is an optimizer.
    """

    torch: tuple[DeviceBytes, ...]
    jaxpar: tuple[DeviceBytes, ...]
    model: str
    sizes: tuple[int, ...]
    kind: str
    compiled_step: int

    @property
    def patterns(self) -> dict[str, tuple[DeviceBytes, ...]]:
        """Both, by name."""
        return {TORCH: self.torch, JAXPAR: self.jaxpar}

    @property
    def subject(self) -> str:
        """What was measured."""
        even = len(set(self.sizes)) == 1 and len(self.sizes) == len(self.torch)
        rows = f"{self.sizes[0]} each" if even else "+".join(map(str, self.sizes))
        where = f"{len(self.torch)} devices ({rows}), compiled for {self.kind}"
        return f"{self.model}, {sum(self.sizes)} rows on {where}"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, in bytes."""
        return {
            "model": self.model,
            "sizes": list(self.sizes),
            "kind": self.kind,
            "unit": "bytes",
            "torch": [dataclasses.asdict(d) | {"total": d.total} for d in self.torch],
            "jaxpar": [dataclasses.asdict(d) | {"total": d.total} for d in self.jaxpar],
            "compiled_step": self.compiled_step,
            "sources": {"torch": SOURCES[TORCH], "jaxpar": SOURCES[JAXPAR], "both": CAVEAT},
        }


def unit_of(largest: int) -> tuple[str, int]:
    """The unit in which a number of bytes is easily read, and how many bytes it has."""
    units = [("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)]
    return next((u for u in reversed(units) if largest >= u[1]), units[0])
