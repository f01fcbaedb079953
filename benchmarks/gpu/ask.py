"""What a side is asked to run, as one process tells the other: plain values, no framework."""

from __future__ import annotations

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Images:
    """A ResNet of version 1.5 with bottlenecks; 1000 classes."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    size: int = 224
    unit = "images/s"

    @property
    def items(self) -> int:
        """What is counted, in a row."""
        return 1


@dataclasses.dataclass(frozen=True)
class Words:
    """GPT-2, as published.py has it."""

    words: int = 50304
    length: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12
    unit = "tokens/s"

    @property
    def items(self) -> int:
        return self.length


MODELS: dict[str, Images | Words] = {"ResNet-50": Images(), "GPT-2 124M": Words()}
SMALL: dict[str, Images | Words] = {
    "ResNet-50": Images((1, 1, 1, 1), 32),
    "GPT-2 124M": Words(512, 64, 64, 2, 2),
}
"""The same programs where there is no accelerator: they are tried, and their numbers mean nothing."""

PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Ask:
    """One visit of one side: so many steps, of so many rows on each device."""

    side: str
    model: str
    precision: str
    devices: int
    rows: int
    steps: int
    small: bool = False

    @property
    def shape(self) -> Images | Words:
        return (SMALL if self.small else MODELS)[self.model]

    @property
    def items(self) -> int:
        """Images or tokens of a step, on all devices."""
        return self.devices * self.rows * self.shape.items

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a visit found.

    Attributes:
      seconds: of a step; the median of its stretches.
      loss: of the first step, on the devices that the process sees.
      memory: bytes at most on the fullest device; None where nobody counts them.
      why: why there is no number.
    """

    seconds: float | None = None
    loss: float | None = None
    memory: int | None = None
    why: str | None = None


def slowest(answers: list[Answer]) -> Answer:
    """Of all processes of a visit: the one that took longest, the fullest device, the mean loss."""
    for answer in answers:
        if answer.why is not None:
            return answer
    memory = [a.memory for a in answers if a.memory is not None]
    losses = [a.loss for a in answers if a.loss is not None]
    return Answer(
        max(a.seconds for a in answers if a.seconds is not None),
        sum(losses) / len(losses) if losses else None,
        max(memory, default=None),
    )
