"""The data: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, which need no download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import JaxparError
from .settings import TRAIN_ROWS


class MissingError(JaxparError, ImportError):
    """A package that only the demo needs is not there, or not as it is needed."""


@dataclass(frozen=True)
class Digits:
    images: np.ndarray  # [B, 8, 8], float64 from 0 to 1
    labels: np.ndarray  # [B], int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Digits:
        return Digits(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Split:
    train: Digits
    test: Digits

    def batches(self, size: int, seed: tuple[int, ...]) -> Iterator[Digits]:
        """An epoch: all training digits in the order of the seed. The last batch takes what is left."""
        order = np.random.default_rng(seed).permutation(len(self.train))
        return (self.train.take(order[start : start + size]) for start in range(0, len(order), size))


def load() -> Split:
    """The digits to train with and those to test with: always the same ones.

    Raises:
      MissingError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingError('demo: the digits come with scikit-learn; pip install "jaxpar[demo]"') from error
    found = load_digits()
    mixed = np.random.default_rng(0).permutation(len(found.target))
    every = Digits(found.images / 16, found.target.astype(np.int64))
    return Split(every.take(mixed[:TRAIN_ROWS]), every.take(mixed[TRAIN_ROWS:]))
