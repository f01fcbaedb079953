"""The mistakes of `script.py` that show in other worlds alone, and how they are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Plant:
    """A mistake; `kind` is what must be more than one for it to show; `named` is in its cause."""

    name: str
    kind: str  # "devices", "processes" or "accumulate"
    named: str  # a regular expression


PLANTS = [
    Plant("no sampler", "processes", "no sampler divides the rows"),
    Plant("another order", "processes", "another order"),
    Plant("drops the last batch", "processes", "last batch|drop"),
    Plant("batch of each process", "processes", "batch size is for each of the 2 processes"),
    Plant("not averaged", "processes", "not averaged over processes"),
    Plant("batch statistics", "devices", "BatchNorm normalises by the rows of each device"),
    Plant("sum of devices", "devices", r"sum over the \d devices"),
    Plant("letters of each part", "devices", "mean of ratios"),
    Plant("masks by device", "devices", "random draws"),
    Plant("masks alike", "devices", "random draws"),
    Plant("rate by devices", "devices", "scaled by the number of devices"),
    Plant("clips parts", "devices", "clipped before they are averaged"),
    Plant("loss of a device", "devices", "not reduced"),
    Plant("sum of batches", "accumulate", r"sum over the \d accumulated batches"),
    Plant("unequal batches", "accumulate", "not equal"),
    Plant("averages batches", "accumulate", "averages the parameters once for each"),
]


@dataclass(frozen=True)
class Case:
    """A plant, a seed of the training, and the worlds that are asked for."""

    plant: Plant
    seed: int
    worlds: str
    accumulate: str


def drawn(seed: int, count: int) -> Iterator[Case]:
    """Yield cases: all plants in a drawn order, and again with other trainings."""
    random = Random(seed)
    plants: list[Plant] = []
    for _ in range(count):
        plants = plants or random.sample(PLANTS, len(PLANTS))
        plant = plants.pop()
        worlds = {"devices": random.choice(["1x1,1x2", "1x1,1x4"]), "processes": "1x1,2x1"}.get(
            plant.kind, "1x1"
        )
        accumulate = random.choice(["1,2", "1,4"]) if plant.kind == "accumulate" else "1"
        yield Case(plant, random.randrange(10**6), worlds, accumulate)
