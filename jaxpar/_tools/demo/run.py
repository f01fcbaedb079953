"""run: both sides take every step, and what they show is compared at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np

import jaxpar

from ..._interrupt import between_steps
from .compare import Difference, Seen, Tensors, Verdict, judge, measure, measure_all
from .digits import Digits, Split, load
from .jax_side import JaxSide
from .settings import TOLERANCE, Fault, Settings

Watch = Callable[[str], None]
"""Called with a text after every step."""


class Side(Protocol):
    """A model in training, as this loop sees it."""

    def step(self, batch: Digits) -> tuple[Seen, float]:
        """One training step: what could be seen, and how many seconds it took."""

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The outputs in evaluation mode."""


@dataclass(frozen=True)
class Learned:
    """One side's epoch: mean loss of its rows, accuracy on the test set, median time of a step."""

    loss: float
    accuracy: float
    seconds_per_step: float


@dataclass(frozen=True)
class Epoch:
    number: int
    steps: int
    jaxpar: Learned
    torch: Learned | None
    differences: list[Difference]


@dataclass(frozen=True)
class Result:
    settings: Settings
    devices: str
    reference: str | None
    last_batch: tuple[int, ...]
    """Rows of each replica in the last batch of an epoch."""
    epochs: list[Epoch]
    bytes_per_device: dict[str, dict[str, int]]
    verdict: Verdict | None
    """None without a reference."""


def run(settings: Settings, watch: Watch) -> Result:
    """Train on both sides, or on jaxpar's alone where torch is not installed."""
    epochs: list[Epoch] = []
    with jax.enable_x64(True), ExitStack() as stack:
        data = load()
        ours = JaxSide(settings)
        reference, described = _reference(ours, stack)
        try:
            with between_steps() as check:
                for number in range(1, settings.epochs + 1):
                    epochs.append(_epoch(number, settings, data, ours, reference, _both(watch, check)))
        except KeyboardInterrupt as stop:
            stop.add_note(_completed(epochs, settings))
            raise
        differences = [d for epoch in epochs for d in epoch.differences]
        return Result(
            settings,
            _describe(jaxpar.devices()),
            described,
            ours.sizes(len(data.train) % settings.batch_size or settings.batch_size),
            epochs,
            ours.bytes_per_device(),
            judge(differences, TOLERANCE) if reference else None,
        )


def _reference(ours: JaxSide, stack: ExitStack) -> tuple[Side | None, str | None]:
    """PyTorch's side, if there is PyTorch, and what it is."""
    try:
        from .torch_side import beside
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None, None
    weights, statistics = ours.state()
    reference = stack.enter_context(beside({**weights, **statistics}, len(jaxpar.devices())))
    return reference, reference.described


def _epoch(
    number: int, settings: Settings, data: Split, ours: Side, reference: Side | None, watch: Watch
) -> Epoch:
    """Both sides go through the training digits once and then name the test digits."""
    record = _Record(ours)
    expected = _Record(reference) if reference else None
    differences: list[Difference] = []
    step = 0
    order = data.batches(settings.batch_size, (settings.seed, number, 0))
    our_order = data.batches(settings.batch_size, (settings.seed, number, int(settings.fault is Fault.ORDER)))
    for step, (our_batch, batch) in enumerate(zip(our_order, order, strict=True), start=1):
        seen = record.step(our_batch)
        if expected:
            differences += measure_all(seen, expected.step(batch), number, step)
        watch(f"epoch {number} of {settings.epochs}")
    logits = record.predict(data.test)
    if expected:
        differences += measure(logits, expected.predict(data.test), "outputs", number, step)
    return Epoch(number, step, record.learned(), expected.learned() if expected else None, differences)


@dataclass
class _Record:
    """What one side does in an epoch."""

    side: Side
    rows: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def step(self, batch: Digits) -> Seen:
        seen, seconds = self.side.step(batch)
        self.rows += len(batch)
        self.loss += float(seen.loss["cross_entropy"]) * len(batch)
        self.seconds.append(seconds)
        return seen

    def predict(self, test: Digits) -> Tensors:
        logits = self.side.predict(test.images)
        self.accuracy = float((logits.argmax(1) == test.labels).mean())
        return {"test logits": logits}

    def learned(self) -> Learned:
        return Learned(self.loss / self.rows, self.accuracy, float(np.median(self.seconds)))


def _both(watch: Watch, check: Callable[[], None]) -> Watch:
    def after_a_step(text: str) -> None:
        watch(text)
        check()

    return after_a_step


def _completed(epochs: list[Epoch], settings: Settings) -> str:
    done = f"{len(epochs)} of {settings.epochs} epochs were completed"
    verdict = judge([d for epoch in epochs for d in epoch.differences], TOLERANCE)
    if not verdict.compared:
        return f"{done}."
    return f"{done}, and both sides were {'the same' if verdict.same else 'different'} in them."


def _describe(devices: list[jax.Device]) -> str:
    n = len(devices)
    if devices[0].platform != "cpu":
        return f"{n} x {devices[0].device_kind}"
    return f"{n} virtual CPU devices" if n > 1 else "1 CPU device"
