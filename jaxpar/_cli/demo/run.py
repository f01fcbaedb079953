"""run: both sides take every step, and what they show is measured and judged at once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import jax
import numpy as np

import jaxpar

from ..._interrupt import between_steps
from ...errors import JaxparError
from ...parity import Comparison, Level, Policy
from ...parity.measuring import Judged, Kind, judge, measure
from .flax_side import FlaxSide, Seen
from .settings import TOLERANCE, TRAIN_ROWS, Fault, Settings

if TYPE_CHECKING:
    from .torch_side import TorchSide


@dataclasses.dataclass(frozen=True)
class Epoch:
    """Mean loss, accuracy and median milliseconds of a step, for each side; and all tensors, compared."""

    losses: list[float]
    accuracies: list[float]
    times: list[float]
    rows: list[Judged]


@dataclasses.dataclass(frozen=True)
class Result:
    """`reference` is PyTorch's side in words, None where torch is not installed; then no row is compared."""

    settings: Settings
    devices: str
    reference: str | None
    epochs: list[Epoch]
    bytes_per_device: dict[str, dict[str, int]]

    @property
    def comparison(self) -> Comparison:
        return comparison(self.epochs)


def run(settings: Settings, watch: Callable[[str], None]) -> Result:
    """Train on both sides, or on jaxpar's alone where torch is not installed.

    Args:
      watch: called with a text after every step.
    """
    epochs: list[Epoch] = []
    with jax.enable_x64(True), ExitStack() as stack, between_steps() as check:
        digits, ours = load(), FlaxSide(settings)
        reference = _torch_side(ours, stack)

        def after_step() -> None:
            watch(f"epoch {len(epochs) + 1} of {settings.epochs}")
            check()

        try:
            for number in range(settings.epochs):
                epochs.append(_epoch(number, settings, digits, [ours, *reference], after_step))
        except KeyboardInterrupt as stop:
            stop.add_note(_completed(epochs, settings))
            raise
        described = reference[0].described if reference else None
        return Result(settings, _devices(), described, epochs, ours.bytes_per_device())


def load() -> tuple[np.ndarray, np.ndarray]:
    """Images [1797, 8, 8] in float64, from 0 to 1, and labels; the first TRAIN_ROWS are to train with.

    Raises:
      JaxparError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise JaxparError('demo: the digits come with scikit-learn; pip install "jaxpar[demo]"') from error
    digits = load_digits()
    mixed = np.random.default_rng(0).permutation(len(digits.target))
    return digits.images[mixed] / 16, digits.target[mixed].astype(np.int64)


def _torch_side(ours: FlaxSide, stack: ExitStack) -> list[TorchSide]:
    try:
        from .torch_side import beside
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return []
    return [stack.enter_context(beside(ours.state_dict(), len(jaxpar.devices())))]


def _epoch(
    number: int,
    settings: Settings,
    digits: tuple[np.ndarray, np.ndarray],
    sides: list[FlaxSide | TorchSide],
    after_step: Callable[[], None],
) -> Epoch:
    """All sides go through the training digits once and then name the test digits."""
    images, labels = digits
    order = np.random.default_rng((settings.seed, number)).permutation(TRAIN_ROWS)
    orders = [order[::-1] if settings.fault is Fault.ORDER else order, order][: len(sides)]
    losses, times = np.zeros(len(sides)), list[list[float]]()
    compared: list[Judged] = []
    starts = range(0, TRAIN_ROWS, settings.batch_size)
    for step, start in enumerate(starts, start=number * len(starts) + 1):
        batches = [each[start : start + settings.batch_size] for each in orders]
        times.append(
            [_milliseconds(s.step, images[b], labels[b]) for s, b in zip(sides, batches, strict=True)]
        )
        seen = [side.seen() for side in sides]
        losses += [each[Kind.LOSS]["cross_entropy"] * len(batches[0]) / TRAIN_ROWS for each in seen]
        compared += judged(seen, step)
        after_step()
    logits = [side.predict(images[TRAIN_ROWS:]) for side in sides]
    compared += judged([{Kind.OUTPUT: {"test logits": x}} for x in logits], step)
    accuracies = [float((x.argmax(1) == labels[TRAIN_ROWS:]).mean()) for x in logits]
    return Epoch(losses.tolist(), accuracies, np.median(times, 0).tolist(), compared)


def _milliseconds(step: Callable[..., None], *batch: np.ndarray) -> float:
    begun = time.perf_counter()
    step(*batch)
    return 1000 * (time.perf_counter() - begun)


def judged(seen: Sequence[Seen], step: int) -> tuple[Judged, ...]:
    """Every tensor of ours and of the reference, which comes second; nothing where there is none."""
    found = []
    for ours, reference in pairwise(seen):
        for kind, tensors in reference.items():
            for d in measure(ours[kind], tensors, kind, step, samples=0):
                # To parity NaNs in the same places are equal. Here they are a training that failed.
                failed = d.fault is None and not np.isfinite(tensors[d.name]).all()
                found.append(dataclasses.replace(d, fault="not finite", relative=np.inf) if failed else d)
    return judge(found, Policy(relative=TOLERANCE))


def comparison(epochs: list[Epoch]) -> Comparison:
    return Comparison(Level.SEMANTIC, tuple(row for epoch in epochs for row in epoch.rows))


def _completed(epochs: list[Epoch], settings: Settings) -> str:
    done, found = f"{len(epochs)} of {settings.epochs} epochs were completed", comparison(epochs)
    if not found.rows:
        return f"{done}."
    return f"{done}, and both sides were {'the same' if found.same else 'different'} in them."


def _devices() -> str:
    devices = jaxpar.devices()
    if devices[0].platform != "cpu":
        return f"{len(devices)} x {devices[0].device_kind}"
    return f"{len(devices)} virtual CPU devices" if len(devices) > 1 else "1 CPU device"
