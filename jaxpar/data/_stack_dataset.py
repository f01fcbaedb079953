"""StackDataset: row i of each of several data sets is sample i. Source: torch/utils/data/dataset.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._dataset import Dataset


class StackDataset(Dataset):
    """Zip several data sets with equally many rows.

    Args:
      args: data sets; a sample is the tuple of their rows.
      kwargs: named ones instead; a sample is a dict.

    Raises: ValueError: both or none are given, or their lengths differ; in `__getitems__`, a data set that
      returns a wrong number of rows.

    torch counterpart: `torch.utils.data.StackDataset`.

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
