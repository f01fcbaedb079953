"""The model of time: a roofline for each kernel, and rings within and between hosts for each collective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from .hardware import Hardware
from .schedule import CollectiveStart, Event, LaneSchedule, lanes


@dataclasses.dataclass(frozen=True)
class ScalingPoint:
    """One step on a number of devices, in seconds; `efficiency` is relative to a single device."""

    devices: int
    hosts: int
    computing: float
    communicating: float
    waiting: float
    step: float
    efficiency: float
    rows_per_second: float


def simulate(events: Sequence[Event], hardware: Hardware, n: int, per_host: int) -> LaneSchedule:
    return lanes(events, hardware.seconds, lambda start: exchange(start, n, per_host, hardware))


def exchange(start: CollectiveStart, n: int, per_host: int, hardware: Hardware) -> float:
    """Return the seconds of one collective over n devices; 0 for a single device.

    Within a host a ring of g devices sends 2(g-1)/g of an all-reduce's bytes over each link in 2(g-1)
    steps. Between h hosts the same ring runs over each host's network, with the bytes split over the host's
    devices; NCCL may use trees instead, with 2 log2(h) steps.
    """
    if n == 1:
        return 0.0
    g, h = min(n, per_host), math.ceil(n / per_host)
    # An all-reduce is a reduce-scatter and an all-gather; the other kinds go around the ring once.
    passes = 2 if start.kind == "all-reduce" else 1
    within = _ring(g, passes * start.bytes, hardware.link * hardware.exchanging)
    between = _ring(h, passes * start.bytes, hardware.network * hardware.exchanging)
    waits = (g - 1) * hardware.latency + min(h - 1, math.ceil(math.log2(h))) * hardware.network_latency
    return within + between + passes * waits + hardware.collective


def _ring(n: int, sent: float, rate: float) -> float:
    return (n - 1) / n * sent / rate


def scale(
    rows: int, events: Sequence[Event], hardware: Hardware, numbers: Iterable[int], per_host: int
) -> tuple[ScalingPoint, ...]:
    # Without communication, so that efficiency counts exposed communication only.
    alone = simulate(events, hardware, 1, per_host).step
    schedules = {n: simulate(events, hardware, n, per_host) for n in numbers}
    return tuple(
        ScalingPoint(
            devices=n,
            hosts=math.ceil(n / per_host),
            computing=schedule.computing,
            communicating=schedule.communicating,
            waiting=schedule.step - schedule.computing,
            step=schedule.step,
            efficiency=alone / schedule.step,
            rows_per_second=n * rows / schedule.step,
        )
        for n, schedule in schedules.items()
    )
