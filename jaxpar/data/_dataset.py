"""Data sets with rows, iterable data sets, combinations and parts of them.

A `DataLoader` accepts any object with `__getitem__` or `__iter__`. Source: torch/utils/data/dataset.py.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np

from .._arguments import warn
from ..errors import CountError
from ..random import Generator
from ._collate import is_array_like, is_numeric
from ._samplers import source

T = TypeVar("T", covariant=True)


def is_stream(dataset: object) -> bool:
    """Return whether a data set can only be iterated over."""
    # By name, since an IterableDataset, torch's too, inherits a `__getitem__` that raises.
    if any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


class Dataset(Generic[T]):
    """`torch.utils.data.Dataset`: rows by index. A subclass defines `__getitem__(i)` and `__len__`.

    With `__getitems__(rows)`, a `DataLoader` reads all rows of a batch at once. `a + b` is a `ConcatDataset`.

    Raises: NotImplementedError: the subclass has no `__getitem__`.

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
    """`torch.utils.data.IterableDataset`. A subclass defines `__iter__`, and optionally `__len__`.

    Worker threads share it, and one of them reads it. Each worker process iterates over a copy of its own:
    `get_worker_info` identifies its share. `a + b` is a `ChainDataset`.

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
    """Concatenate the rows of several data sets, as `torch.utils.data.ConcatDataset`.

    Args:
      datasets: data sets with a length. `cumulative_sizes[i]` is the number of rows up to the end of i.

    Raises: AssertionError: no data set, or one without rows. In `concat[i]`, ValueError, IndexError: no row.

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
    """Iterate over several iterable data sets in sequence, as `torch.utils.data.ChainDataset`.

    Raises: AssertionError: in the loop, and in `len`, as in torch: a data set that is not iterable.
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


class StackDataset(Dataset):
    """Zip several data sets with equally many rows, as `torch.utils.data.StackDataset`.

    Args:
      args: data sets; a sample is the tuple of their rows.
      kwargs: named ones instead; a sample is a dict.

    Raises: ValueError: both or none are given, or their lengths differ; in `__getitems__`, a data set that
      returns a wrong number of rows.

    >>> from jaxpar import data
    >>> data.StackDataset([1, 2], ['a', 'b'])[1]
    (2, 'b')
    """

    def __init__(self, *args: Any, **kwargs: Any):
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or"
                "``dict``- (via ``kwargs``) like input/output, but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        lengths = [len(dataset) for dataset in self._each()]
        if len(set(lengths)) > 1:
            raise ValueError(f"Size mismatch between datasets: StackDataset got {lengths} rows")
        self._length = lengths[0]

    def _each(self) -> Sequence[Any]:
        return list(self.datasets.values()) if isinstance(self.datasets, dict) else self.datasets

    def _sample(self, rows: Sequence[Any]) -> Any:
        return dict(zip(self.datasets, rows, strict=True)) if isinstance(self.datasets, dict) else tuple(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._sample([dataset[index] for dataset in self._each()])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        columns = [_rows(dataset, indices) for dataset in self._each()]
        return [self._sample(rows) for rows in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


def _rows(dataset: Any, indices: Sequence[Any]) -> Sequence[Any]:
    if not callable(getattr(dataset, "__getitems__", None)):
        return [dataset[index] for index in indices]
    rows = dataset.__getitems__(indices)
    if len(rows) != len(indices):
        raise ValueError(f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(rows)}")
    return rows


class TensorDataset(Dataset):
    """A data set of arrays with equally many rows, as `torch.utils.data.TensorDataset`.

    Args:
      arrays: [n, ...] NumPy arrays, or anything that `np.asarray` converts without loss: arrays of JAX,
        tensors of torch on the CPU. NumPy's are kept as they are; memory maps stay on disk.

    `dataset[i]` is the tuple of rows i, `dataset.arrays` are the arrays. A `DataLoader` reads a batch with
    one look-up per array, without a step of Python for each row.

    Raises: CountError: different numbers of rows. TypeError: no array at all, or something that is not one.
      IndexError: an array without axes.

    >>> import numpy as np
    >>> from jaxpar import data
    >>> len(data.TensorDataset(np.zeros((4, 2)), np.arange(4)))
    4
    """

    def __init__(self, *arrays: Any):
        if not arrays:
            raise TypeError("TensorDataset: give at least one array.")
        for i, x in enumerate(arrays):
            if not is_array_like(x):
                raise TypeError(
                    f"TensorDataset: arrays[{i}] is a {type(x).__name__}, not an array; np.asarray makes one."
                )
            if not x.shape:
                raise IndexError(
                    f"TensorDataset: arrays[{i}] has no axes (Dimension specified as 0 but tensor has no "
                    "dimensions), so it has no rows."
                )
            if x.shape[0] != arrays[0].shape[0]:
                raise CountError(
                    f"Size mismatch between tensors: TensorDataset got arrays[0] with {arrays[0].shape[0]} "
                    f"rows and arrays[{i}] with {x.shape[0]}. Row i of each is sample i: cut them alike."
                )
        self.arrays: tuple[np.ndarray, ...] = tuple(np.asarray(x) for x in arrays)
        self.numeric = all(is_numeric(x.dtype) for x in self.arrays)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(x[index] for x in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def gather(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return `default_collate([dataset[i] for i in rows])`, for arrays of numbers."""
        # np.asarray([]) is float64, which cannot index.
        rows = np.asarray(rows) if len(rows) else np.empty(0, np.intp)
        return [x.take(rows, axis=0) for x in self.arrays]


class Subset(Dataset):
    """The rows `indices` of a data set, as `torch.utils.data.Subset`.

    Raises: NotImplementedError: a subclass overrides `__getitem__`, but not `__getitems__`, which is called
    first.

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
            warn(f"Length of split at index {i} is 0. This might result in an empty dataset.")
    return lengths
