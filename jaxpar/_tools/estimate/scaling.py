"""The model of time: a roofline for the device, a ring of rings for the all-reduce.

Weak scaling, as data parallelism is used: every device keeps its rows, and n devices see n times
as many in a step.
"""

from __future__ import annotations

import dataclasses
import math

from .count import Traffic, Work
from .hardware import Hardware


@dataclasses.dataclass(frozen=True)
class Point:
    """One step on a number of devices, in seconds.

    Attributes:
      computing: of a device alone. communicating: of the all-reduces alone.
      waiting: the part of communicating that does not lie beside computing.
      step: computing and waiting. efficiency: the step of one device over this one.
      rows_per_second: of all devices.
    """

    devices: int
    hosts: int
    computing: float
    communicating: float
    waiting: float
    step: float
    efficiency: float
    rows_per_second: float


def computing(work: Work, hardware: Hardware, efficiency: float = 1.0) -> float:
    """Seconds of a device: operations or bytes, whichever takes longer, at a part of the peak."""
    return max(work.flops / hardware.rate(work.kind), work.bytes / hardware.bandwidth) / efficiency


def all_reduce(n: int, traffic: Traffic, hardware: Hardware) -> float:
    """Seconds of a step's all-reduces over n devices.

    Within a host a ring of g devices sends 2(g-1)/g of the bytes over each link in 2(g-1) steps.
    Between h hosts a ring does the same, each device of a host with its share of the bytes, all of
    them through the host's network.
    """
    g = min(n, hardware.per_host)
    h = math.ceil(n / hardware.per_host)
    within = _ring(g, traffic, hardware.link, hardware.latency)
    return within + _ring(h, traffic, hardware.network, hardware.network_latency)


def _ring(n: int, traffic: Traffic, rate: float, latency: float) -> float:
    return 2 * (n - 1) / n * traffic.bytes / rate + traffic.count * 2 * (n - 1) * latency


def scale(
    rows: int,
    work: Work,
    traffic: Traffic,
    hardware: Hardware,
    devices: tuple[int, ...],
    *,
    efficiency: float,
    overlap: float,
) -> tuple[Point, ...]:
    """A point for each number of devices."""
    alone = computing(work, hardware, efficiency)
    points = []
    for n in devices:
        exchange = all_reduce(n, traffic, hardware)
        waiting = exchange - min(overlap * exchange, alone)
        step = alone + waiting
        points.append(
            Point(
                devices=n,
                hosts=math.ceil(n / hardware.per_host),
                computing=alone,
                communicating=exchange,
                waiting=waiting,
                step=step,
                efficiency=alone / step,
                rows_per_second=n * rows / step,
            )
        )
    return tuple(points)
