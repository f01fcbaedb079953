"""Subset, and random_split, which splits a data set at random. Source: torch/utils/data/dataset.py."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

from ..random import Generator
from ._dataset import Dataset
from ._generators import source


class Subset(Dataset):
    """A subset of a data set's rows: row i is row `indices[i]` of the full data set.

    Raises: NotImplementedError: a subclass has its own `__getitem__` and not its own `__getitems__`, which a
      `DataLoader` asks first.

    torch counterpart: `torch.utils.data.Subset`.

    >>> from jaxpar import data
    >>> list(data.Subset('abc', [2, 0]))
    ['c', 'a']
    """

    def __init__(self, dataset: Any, indices: Sequence[Any]):
        self.dataset, self.indices = dataset, indices
        kind = type(self)
        if kind.__getitem__ is not Subset.__getitem__ and kind.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{kind.__name__} overrides __getitem__ but not __getitems__. When subclassing Subset and "
                "overriding __getitem__, you must also override __getitems__ to ensure DataLoader works "
                "correctly with your custom logic. A simple implementation:\n\n"
                "def __getitems__(self, indices):\n    return [self.__getitem__(idx) for idx in indices]"
            )

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        rows = [self.indices[i] for i in indices]
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.dataset.__getitems__(rows)
        return [self.dataset[row] for row in rows]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Any,
    lengths: Iterable[float],
    generator: Generator | None = None,
    *,
    seed: int | Generator | None = None,
) -> list[Subset]:
    """Split a data set into subsets at random; each row is in exactly one.

    Args:
      dataset: a data set with a length.
      lengths: how many rows each subset gets; or fractions that add up to 1, which are rounded down, and the
        first subsets get a row more each until none is left.
      generator, seed: as for `RandomSampler`.

    Raises: ValueError: lengths below 0, a fraction outside of [0, 1], a sum that is not the number of rows.
      TypeError: lengths that are neither ints nor fractions that add up to 1.

    torch counterpart: `torch.utils.data.random_split`, the same rows. It accepts negative lengths.

    >>> from jaxpar import data
    >>> [len(part) for part in data.random_split(range(10), [0.7, 0.3], seed=0)]
    [7, 3]
    """
    g = source(generator, seed, "random_split")
    lengths = list(lengths)
    # torch's condition, literally: the lengths [1] are a fraction, too, and mean all rows.
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        lengths = _of_fractions(len(dataset), lengths)
    if sum(lengths) != len(dataset):
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset!"
            f" random_split: {lengths} add up to {sum(lengths)}, and there are {len(dataset)} rows."
        )
    if min(lengths, default=0) < 0:
        raise ValueError(f"random_split: the lengths are {lengths}, and no subset has fewer than 0 rows.")
    counts = cast(list[int], lengths)
    rows = iter(g.randperm(sum(counts)).tolist())
    return [Subset(dataset, list(itertools.islice(rows, count))) for count in counts]


def _of_fractions(rows: int, fractions: Sequence[float]) -> list[float]:
    for i, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1")
    lengths: list[float] = [math.floor(rows * fraction) for fraction in fractions]
    for i in range(int(rows - sum(lengths))):
        lengths[i % len(lengths)] += 1
    for i, length in enumerate(lengths):
        if length == 0:
            warnings.warn(
                f"Length of split at index {i} is 0. This might result in an empty dataset.", stacklevel=3
            )
    return lengths
