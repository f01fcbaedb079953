"""Hardware: the rates that a prediction divides by, and the cards whose data sheets are known.

Every figure is the vendor's peak, per device and without sparsity; docs/estimate.md names the source
of each. A data sheet's link bandwidth counts both directions, and half of it stands here, because
a ring sends and receives at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

NVLINK, PCIE, NETWORK = 3.4e-6, 5.7e-6, 9.6e-6
"""Seconds for one step of a ring with large messages: hwLat in NCCL's src/graph/tuning.cc, ring, Simple."""

HUNDRED_GIGABIT = 12.5e9
"""Bytes per second. Assumed for cards of which the vendor builds no cluster."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One device, its links and its host, in bytes, seconds and operations.

    Attributes:
      name: of the device.
      flops: operations per second, by the type in which matrices are multiplied. `float32` is TF32
        where the card has it, as in JAX's default precision.
      bandwidth: bytes per second between a device and its own memory.
      memory: bytes on a device.
      link: bytes per second that a device sends to its neighbour on the same host.
      network: bytes per second that a host sends to another one.
      latency, network_latency: seconds for one step of a ring, within a host and between hosts.
      per_host: devices of a host.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    link: float
    network: float
    latency: float
    network_latency: float = NETWORK
    per_host: int = 8

    def __post_init__(self) -> None:
        positive = {f"flops[{kind!r}]": rate for kind, rate in self.flops.items()}
        positive |= {
            name: getattr(self, name) for name in ("bandwidth", "memory", "link", "network", "per_host")
        }
        for name, value in positive.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"estimate: {name}={value} must be a positive number.")
        for name in ("latency", "network_latency"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"estimate: {name}={getattr(self, name)} must not be negative.")

    @staticmethod
    def of(card: str, **changes: Any) -> Hardware:
        """A card of the table by its name, with other figures where some are given.

        `flops` may be one number, for all types.

        Raises:
          ValueError: no such card, or a rate that is not positive.
        """
        key = card.lower().replace(" ", "").replace("-", "")
        if key not in CARDS:
            raise ValueError(
                f"estimate: device={card!r} is none of {', '.join(CARDS)}. For another one give its figures: "
                "jaxpar.Hardware(...), or --flops, --bandwidth, --memory, --link beside the nearest of these."
            )
        if isinstance(changes.get("flops"), (int, float)):
            changes["flops"] = dict.fromkeys(KINDS, float(changes["flops"]))
        return dataclasses.replace(CARDS[key], **changes)

    def rate(self, kind: str) -> float:
        """Operations per second in a type.

        Raises:
          ValueError: the card has no figure for it.
        """
        if kind not in self.flops:
            raise ValueError(
                f"estimate: {self.name} has no figure for {kind}, in which the step multiplies matrices; "
                f"there are {', '.join(self.flops)}. Give one: flops={{{kind!r}: 1e12}}, or --flops."
            )
        return self.flops[kind]


KINDS = ("float64", "float32", "bfloat16", "float16")


def _card(name: str, tera: tuple[float | None, ...], **figures: Any) -> Hardware:
    flops = {kind: rate * 1e12 for kind, rate in zip(KINDS, tera, strict=True) if rate is not None}
    return Hardware(name, flops, **figures)


def _pcie(name: str, tera: tuple[float | None, ...], **figures: Any) -> Hardware:
    return _card(name, tera, network=HUNDRED_GIGABIT, latency=PCIE, **figures)


def _nvlink(name: str, tera: tuple[float | None, ...], **figures: Any) -> Hardware:
    return _card(name, tera, latency=NVLINK, **figures)


_HOPPER = (66.9, 494.7, 989.4, 989.4)
CARDS = {
    "h200": _nvlink("H200 SXM", _HOPPER, bandwidth=4.8e12, memory=141e9, link=450e9, network=400e9),
    "h100": _nvlink("H100 SXM", _HOPPER, bandwidth=3.35e12, memory=80e9, link=450e9, network=400e9),
    "a100": _nvlink(
        "A100 SXM 80GB",
        (19.5, 156.0, 312.0, 312.0),
        bandwidth=2.039e12,
        memory=80e9,
        link=300e9,
        network=200e9,
    ),
    "v100": _nvlink(
        "V100 SXM2 32GB", (7.8, 15.7, None, 125.0), bandwidth=900e9, memory=32e9, link=150e9, network=50e9
    ),
    "l40s": _pcie("L40S", (None, 183.0, 362.0, 362.0), bandwidth=864e9, memory=48e9, link=32e9),
    "l4": _pcie("L4", (None, 60.0, 121.0, 121.0), bandwidth=300e9, memory=24e9, link=32e9),
    "t4": _pcie("T4", (None, 8.1, None, 65.0), bandwidth=300e9, memory=16e9, link=16e9),
    "rtx4090": _pcie(
        "GeForce RTX 4090", (None, 82.6, 165.2, 165.2), bandwidth=1008e9, memory=24e9, link=32e9
    ),
    "rtx3090": _pcie("GeForce RTX 3090", (None, 35.6, 71.0, 71.0), bandwidth=936e9, memory=24e9, link=32e9),
}
