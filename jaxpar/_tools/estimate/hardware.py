"""The rates of a prediction, and a table of cards: the vendors' peaks, per device and without sparsity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from .hlo import KernelWork

NVLINK, PCIE, NETWORK = 3.4e-6, 5.7e-6, 9.6e-6
"""Seconds for one step of a ring with large messages: hwLat in NCCL's src/graph/tuning.cc, ring, Simple."""

HUNDRED_GIGABIT = 12.5
"""In GB/s. Assumed for cards that the vendor does not sell in clusters."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The peak rates of a device, its links and its host, and the fractions of them that programs reach.

    Attributes:
      name: the device's name.
      flops: operations per second by type; `float32` is TF32 where the card supports it, as in JAX's default.
      bandwidth, memory: bytes per second between a device and its memory, and that memory's bytes.
      link, network: bytes per second from a device to its neighbour on the host, and from host to host.
      latency, network_latency: seconds for one step of a ring, within a host and between hosts.
      products, streaming, exchanging: the reached fractions of `flops`, of `bandwidth`, and of `link` and
        `network`; above 0 and at most 1.
      kernel, collective: seconds to start one.
      card: the card's name in `jaxpar.topology`; empty if XLA's compiler does not support it.

    >>> import jaxpar
    >>> jaxpar.Hardware.of("h100").flops["bfloat16"]
    989400000000000.0
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    link: float
    network: float
    latency: float
    network_latency: float = NETWORK
    # The best shapes reach 0.80 on an H100 and 0.87 on an A100; layers have others.
    products: float = 0.7
    # For kernels that only read and write.
    streaming: float = 0.85
    # For a large all-reduce over NCCL's rings.
    exchanging: float = 0.8
    # From XLA's own performance model.
    kernel: float = 1e-6
    collective: float = 5e-6
    card: str = ""

    def __post_init__(self) -> None:
        positive = {f"flops[{kind!r}]": rate for kind, rate in self.flops.items()}
        positive |= {
            name: getattr(self, name) for name in ("bandwidth", "memory", "link", "network", *PARTS_OF_PEAK)
        }
        for name, value in positive.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"estimate: {name}={value} must be a positive number.")
        for name in PARTS_OF_PEAK:
            if getattr(self, name) > 1:
                raise ValueError(f"estimate: {name}={getattr(self, name)} is a part of the peak, at most 1.")
        for name in ("latency", "network_latency", "kernel", "collective"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"estimate: {name}={getattr(self, name)} must not be negative.")

    @staticmethod
    def of(card: str, **changes: Any) -> Hardware:
        """Return a card by this table's or topology's name, with some figures replaced.

        `flops` may be one number, for all types.

        >>> Hardware.of("a100", memory=40e9).memory, Hardware.of("a100-80") == Hardware.of("A100")
        (40000000000.0, True)

        Raises:
          ValueError: no such card, or a rate that is not positive.
        """
        # Both names are accepted: topology's "a100-80" is this table's "a100".
        by_name = {
            _plain(name): hardware for key, hardware in CARDS.items() for name in (key, hardware.card) if name
        }
        if _plain(card) not in by_name:
            raise ValueError(
                f"estimate: device={card!r} is none of {', '.join(CARDS)}. For another one give its figures: "
                "jaxpar.Hardware(...), or --flops, --bandwidth, --memory, --link beside the nearest of these."
            )
        if isinstance(changes.get("flops"), (int, float)):
            changes["flops"] = dict.fromkeys(KINDS, float(changes["flops"]))
        return dataclasses.replace(by_name[_plain(card)], **changes)

    def seconds(self, work: KernelWork) -> float:
        """Return a kernel's time: its operations or its bytes, whichever take longer, and its start."""
        products = work.flops / (self.rate(work.kind) * self.products) if work.flops else 0.0
        return max(products, work.bytes / (self.bandwidth * self.streaming)) + self.kernel

    def rate(self, kind: str) -> float:
        """Return the operations per second in a type; raise ValueError if the card has no figure."""
        if kind not in self.flops:
            raise ValueError(
                f"estimate: {self.name} has no figure for {kind}, in which the step multiplies matrices; "
                f"there are {', '.join(self.flops)}. Give one: flops={{{kind!r}: 1e12}}, or --flops."
            )
        return self.flops[kind]


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")


PARTS_OF_PEAK = ("products", "streaming", "exchanging")
KINDS = ("float64", "float32", "bfloat16", "float16")


_CARDS = {
    # name; topology's name; TFLOP/s in each of KINDS; memory in GB/s and GB; GB/s of a link and of a network
    "b200": ("B200 SXM", "b200", (40.0, 1100.0, 2250.0, 2250.0), 8000, 192, 900, 400),
    "h200": ("H200 SXM", "h200", (66.9, 494.7, 989.4, 989.4), 4800, 141, 450, 400),
    "h100": ("H100 SXM", "h100", (66.9, 494.7, 989.4, 989.4), 3350, 80, 450, 400),
    "a100": ("A100 SXM 80GB", "a100-80", (19.5, 156.0, 312.0, 312.0), 2039, 80, 300, 200),
    "a100-40": ("A100 SXM 40GB", "a100-40", (19.5, 156.0, 312.0, 312.0), 1555, 40, 300, 200),
    "v100": ("V100 SXM2 32GB", "v100", (7.8, 15.7, None, 125.0), 900, 32, 150, 50),
    "l40s": ("L40S", "", (None, 183.0, 362.0, 362.0), 864, 48, 32, HUNDRED_GIGABIT),
    "l4": ("L4", "", (None, 60.0, 121.0, 121.0), 300, 24, 32, HUNDRED_GIGABIT),
    "t4": ("T4", "", (None, 8.1, None, 65.0), 300, 16, 16, HUNDRED_GIGABIT),
    "rtx4090": ("GeForce RTX 4090", "", (None, 82.6, 165.2, 165.2), 1008, 24, 32, HUNDRED_GIGABIT),
    "rtx3090": ("GeForce RTX 3090", "", (None, 35.6, 71.0, 71.0), 936, 24, 32, HUNDRED_GIGABIT),
}
CARDS = {
    name: Hardware(
        title,
        {kind: rate * 1e12 for kind, rate in zip(KINDS, tera, strict=True) if rate is not None},
        bandwidth=bandwidth * 1e9,
        memory=memory * 1e9,
        link=link * 1e9,
        network=network * 1e9,
        latency=NVLINK if "SXM" in title else PCIE,
        card=card,
    )
    for name, (title, card, tera, bandwidth, memory, link, network) in _CARDS.items()
}
