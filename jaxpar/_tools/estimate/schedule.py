"""A compiled program as two lanes of a device: kernels, and collectives that overlap with them.

A collective has a start and a done: it runs on the device's second stream from the start on, and the kernels
after the done wait for its end. A kernel takes a roofline's time, a collective the time of rings within and
between hosts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from .hardware import Hardware
from .hlo import Computation, Instruction, KernelWork, Module, exchanged_bytes, work

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
COMPUTE, EXCHANGE = "compute", "exchange"


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    origin: str
    work: KernelWork
    turns: int = 1


@dataclasses.dataclass(frozen=True)
class CollectiveStart:
    """A collective's start: `kind` is one of COLLECTIVES, `bytes` the larger of operands and results."""

    name: str
    kind: str
    bytes: int
    turns: int = 1


@dataclasses.dataclass(frozen=True)
class CollectiveWait:
    """A collective's done: the following events wait for the collective that started as `name`."""

    name: str


Event = Kernel | CollectiveStart | CollectiveWait


@dataclasses.dataclass(frozen=True)
class TimeSlot:
    """An interval in a lane, in seconds; an exchange is `hidden` while the other lane computes."""

    name: str
    origin: str
    lane: str
    begin: float
    seconds: float
    flops: float = 0.0
    bytes: float = 0.0
    hidden: float = 0.0

    @property
    def end(self) -> float:
        return self.begin + self.seconds


@dataclasses.dataclass(frozen=True)
class LaneSchedule:
    slots: tuple[TimeSlot, ...]

    @property
    def step(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0)

    @property
    def computing(self) -> float:
        return sum(slot.seconds for slot in self.slots if slot.lane == COMPUTE)

    @property
    def exchanges(self) -> tuple[TimeSlot, ...]:
        return tuple(slot for slot in self.slots if slot.lane == EXCHANGE)

    @property
    def communicating(self) -> float:
        return sum(slot.seconds for slot in self.exchanges)

    @property
    def overlap(self) -> float:
        """The fraction of the exchange that overlaps with kernels, 0 to 1; 1 without an exchange."""
        return sum(slot.hidden for slot in self.exchanges) / self.communicating if self.communicating else 1.0


def events(module: Module, seconds: Callable[[KernelWork], float]) -> list[Event]:
    """Return a device's events in order, with each conditional's longest branch by `seconds`."""
    return list(_events(module, module.computations[module.entry], 1, seconds))


def _events(
    module: Module, computation: Computation, turns: int, seconds: Callable[[KernelWork], float]
) -> Iterator[Event]:
    for instruction in computation.instructions.values():
        operation = instruction.operation
        inner = [module.computations[name] for name in instruction.called]
        if operation in ("while", "call"):
            # A loop without a known trip count is counted once: its time cannot be predicted from the
            # program.
            again = (instruction.turns or 1) if operation == "while" else 1
            # The loop's body or the called computation: `called` leaves a loop's condition out.
            yield from _events(module, inner[-1], turns * again, seconds)
        elif operation == "conditional":
            # Which branch runs is only known at run time. The longest keeps the prediction an upper bound.
            branches = [list(_events(module, branch, turns, seconds)) for branch in inner]
            yield from max(branches, key=lambda branch: _busy(branch, seconds))
        elif kind := _collective(instruction, inner):
            yield from _exchange(instruction, kind, computation, inner, turns)
        # The work of an asynchronous kernel is counted at its start; the done only waits.
        elif not operation.endswith("-done") and (done := work(instruction, computation, module)):
            yield Kernel(instruction.name, instruction.origin, done, turns)


def _busy(branch: Sequence[Event], seconds: Callable[[KernelWork], float]) -> float:
    return sum(seconds(event.work) * event.turns for event in branch if isinstance(event, Kernel))


def _collective(instruction: Instruction, inner: Sequence[Computation]) -> str | None:
    """Return the collective that an instruction belongs to; "done" for the end of an asynchronous one."""
    operation = instruction.operation
    if operation == "async-start":
        operation = inner[0].root.operation
    elif operation == "async-done":
        # An async-done names no computation, so only its name shows that it ends a collective.
        return "done" if any(kind in instruction.name for kind in COLLECTIVES) else None
    return next((kind for kind in COLLECTIVES if operation in (kind, f"{kind}-start", f"{kind}-done")), None)


def _exchange(
    instruction: Instruction, kind: str, computation: Computation, inner: Sequence[Computation], turns: int
) -> Iterator[Event]:
    if instruction.operation.endswith("-done"):
        yield CollectiveWait(instruction.operands[0])
        return
    nested = inner[0] if instruction.operation == "async-start" else None
    moved = exchanged_bytes(*((nested.root, nested) if nested else (instruction, computation)))
    yield CollectiveStart(instruction.name, kind, moved, turns)
    if not instruction.operation.endswith("-start"):
        yield CollectiveWait(instruction.name)


def lanes(
    program: Sequence[Event],
    seconds: Callable[[KernelWork], float],
    exchange: Callable[[CollectiveStart], float],
) -> LaneSchedule:
    """Schedule the events: kernels in sequence, collectives in sequence, the two overlapping."""
    slots: list[TimeSlot] = []
    busy: list[tuple[float, float]] = []
    now, free, ends = 0.0, 0.0, {}
    for event in program:
        if isinstance(event, Kernel):
            took, done = seconds(event.work) * event.turns, event.work
            flops, moved = done.flops * event.turns, done.bytes * event.turns
            slots.append(TimeSlot(event.name, event.origin, COMPUTE, now, took, flops, moved))
            # Kernels without a gap between them are one interval.
            adjacent = busy and now <= busy[-1][1]
            begin = busy.pop()[0] if adjacent else now
            now += took
            busy.append((begin, now))
        elif isinstance(event, CollectiveStart):
            # One communicator serves all collectives, so each begins after the one before, however early it
            # starts.
            begin, took = max(now, free), exchange(event) * event.turns
            slots.append(
                TimeSlot(event.name, event.kind, EXCHANGE, begin, took, bytes=event.bytes * event.turns)
            )
            free = ends[event.name] = begin + took
        else:
            # A done inside a loop may name a start outside the parsed computation: then wait for all
            # collectives.
            now = max(now, ends.get(event.name, free))

    def hidden(slot: TimeSlot) -> float:
        return sum(max(min(slot.end, end) - max(slot.begin, begin), 0.0) for begin, end in busy)

    return LaneSchedule(
        tuple(
            dataclasses.replace(slot, hidden=hidden(slot)) if slot.lane == EXCHANGE else slot
            for slot in slots
        )
    )


def uncounted(program: Sequence[Event]) -> tuple[str, ...]:
    """Return the library functions whose operations are not counted."""
    kernels = [event for event in program if isinstance(event, Kernel) and not event.work.counted]
    return tuple(sorted({kernel.origin or kernel.name for kernel in kernels}))


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
