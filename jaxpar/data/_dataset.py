"""Data sets with rows, iterable data sets, and concatenations of both.

A `DataLoader` accepts any object with `__getitem__` or `__iter__`. Source: torch/utils/data/dataset.py.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T", covariant=True)


def is_stream(dataset: object) -> bool:
    """Return whether a data set can only be iterated over."""
    # By name, since an IterableDataset, torch's too, inherits a `__getitem__` that raises.
    if any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


class Dataset(Generic[T]):
    """A data set indexed by row. A subclass defines `__getitem__(i)` and `__len__`.

    With `__getitems__(rows)`, a `DataLoader` reads all rows of a batch at once. `a + b` is a `ConcatDataset`.

    Raises: NotImplementedError: the subclass has no `__getitem__`.

    torch counterpart: `torch.utils.data.Dataset`.

    >>> from jaxpar import data
    >>> class Squares(data.Dataset):
    ...     def __len__(self):
    ...         return 3
    ...     def __getitem__(self, i):
    ...         return i * i
    >>> Squares()[2]
    4
    """

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """A data set that is iterated over. A subclass defines `__iter__`, and optionally `__len__`.

    Worker threads share it, and one of them reads it. Each worker process iterates over a copy of its own:
    `get_worker_info` identifies its share. `a + b` is a `ChainDataset`.

    torch counterpart: `torch.utils.data.IterableDataset`.

    >>> from jaxpar import data
    >>> class Count(data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(3))
    >>> list(Count())
    [0, 1, 2]
    """

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Any) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class ConcatDataset(Dataset):
    """Concatenate the rows of several data sets.

    Args:
      datasets: data sets with a length. `cumulative_sizes[i]` is the number of rows up to the end of i.

    Raises: AssertionError: no data set, or one without rows. In `concat[i]`, ValueError, IndexError: no such
    row.

    torch counterpart: `torch.utils.data.ConcatDataset`.

    >>> from jaxpar import data
    >>> list(data.ConcatDataset([[1, 2], [3]]))
    [1, 2, 3]
    """

    def __init__(self, datasets: Iterable[Any]):
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(map(is_stream, self.datasets)):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        return list(itertools.accumulate(map(len, sequence)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> Any:
        if idx < -len(self):
            raise ValueError("absolute value of index should not exceed dataset length")
        if idx >= len(self):  # ends `for row in concat`
            raise IndexError(f"ConcatDataset: row {idx} of {len(self)}; list index out of range")
        row = idx % len(self)
        i = bisect.bisect_right(self.cumulative_sizes, row)
        return self.datasets[i][row - self.cumulative_sizes[i] + len(self.datasets[i])]


class ChainDataset(IterableDataset):
    """Iterate over several iterable data sets in sequence.

    Raises: AssertionError: in the loop, and in `len`, as in torch: a data set that is not iterable.

    torch counterpart: `torch.utils.data.ChainDataset`.
    """

    def __init__(self, datasets: Iterable[Any]):
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._streams())

    def __len__(self) -> int:
        return sum(map(len, self._streams()))

    def _streams(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not is_stream(dataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield dataset
