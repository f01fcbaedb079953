"""A training of the benchmark: a model, its data and the settings of its loop, which a plant changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

LENGTH, LETTERS = 12, 40  # characters that the language model sees at once, and their number


@dataclass(frozen=True)
class Training:
    """One training. `data`, `loss`, `pass_` and `loop` hold what a plant changes in these parts."""

    model: str  # "regression", "digits" or "letters", after examples 06, 07 and 12
    framework: str  # "torch" or "jax"
    dtype: str
    seed: int
    optimizer: str = "sgd"
    settings: dict[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    rate: float = 0.05
    schedule: str = "constant"  # or "warm", "step"
    clip: float | None = None
    accumulate: int = 1
    world: int = 1
    dropout: float = 0.0
    steps: int = 16
    batch_size: int = 16
    rows: int = 72  # of the data set: the last batch of an epoch has half the rows
    plant: tuple[tuple[str, Any], ...] = ()

    def has(self, name: str) -> Any:
        return dict(self.plant).get(name)

    def planted(self, **changes: Any) -> Training:
        return replace(self, plant=tuple(changes.items()))


def rate_at(training: Training, count: int) -> float:
    """Return the rate of an update."""
    count += training.has("schedule shift") or 0
    if training.has("schedule period"):
        count = count // training.has("schedule period")
    if training.schedule == "constant" or training.has("no schedule"):
        return training.rate
    if training.schedule == "step":
        return training.rate * 0.5 ** (max(count, 0) // 5)
    if count < 4:
        return training.rate * (max(count, 0) + 1) / 5
    return training.rate * (0.1 + 0.45 * (1 + np.cos(np.pi * (count - 4) / 20)))


@functools.cache
def data_set(model: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, images channels last, and targets."""
    if model == "regression":
        x, y = load_diabetes(return_X_y=True)
        return 20 * x[:rows], ((y - y.mean()) / y.std())[:rows, None]
    if model == "digits":
        images, labels = load_digits(return_X_y=True)
        return (images / 16).reshape(-1, 8, 8, 1)[:rows], labels[:rows]
    text = "\n".join(topics[name] for name in sorted(topics))[: rows * LENGTH + 1]
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) % LETTERS for letter in text])
    return codes[:-1].reshape(rows, LENGTH), codes[1:].reshape(rows, LENGTH)


def indices(training: Training) -> Iterator[np.ndarray]:
    """Yield the rows of each batch, epoch after epoch."""
    epoch, batch = 0, training.batch_size
    while True:
        seed = [
            training.seed + (1000 if training.has("other order") else 0),
            0 if training.has("same epochs") else epoch,
        ]
        order = np.random.default_rng(seed).permutation(training.rows)
        if training.has("other half") is not None:
            order = order + training.rows
        for start in range(0, training.rows, batch):
            rows = order[start : start + batch]
            if len(rows) < batch and training.has("drop last"):
                continue
            if len(rows) < batch and training.has("fill last"):
                rows = np.concatenate([rows, order[: batch - len(rows)]])
            yield rows
        epoch += 1


def batches(training: Training) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs and targets as both sides take them, with a plant's changes of the data."""
    x, y = data_set(training.model, 2 * training.rows)
    stream = indices(training)
    for _ in range(training.has("skip batches") or 0):
        next(stream)
    for rows in stream:
        a, b = x[rows], y[rows]
        if training.has("flip"):
            chosen = np.random.default_rng(int(rows[0])).random(len(a)) < 0.5
            a = np.where(chosen[:, None, None, None], a[:, :, ::-1], a)
        if factor := training.has("scale"):
            a = a * factor + (training.has("offset") or 0.0)
        if training.has("round inputs"):
            a = bfloat16(a)
        if shift := training.has("label rows"):
            b = np.roll(b, -shift, 0)
        if training.has("label offset"):
            b = (b + 1) % (11 if training.model == "digits" else LETTERS + 1)
        if training.has("target position"):
            b = np.roll(b, -1, 1)
        if training.has("labels apart"):
            b = b[np.random.default_rng(int(rows[0])).permutation(len(b))]
        yield a, b


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to bfloat16, by way of the bits of float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return rounded.view(np.float32).astype(x.dtype)
