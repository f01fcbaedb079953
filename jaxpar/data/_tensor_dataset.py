"""TensorDataset: arrays in memory; row i of each of them is sample i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import CountError
from ._collate import is_array_like, is_numeric
from ._dataset import Dataset


class TensorDataset(Dataset):
    """A data set of arrays with equally many rows.

    Args:
      arrays: [n, ...] NumPy arrays, or anything that `np.asarray` converts without loss: arrays of JAX,
        tensors of torch on the CPU. NumPy's are kept as they are; memory maps stay on disk.

    `dataset[i]` is the tuple of rows i, `dataset.arrays` are the arrays. A `DataLoader` reads a batch with
    one look-up per array, without a step of Python for each row.

    Raises: CountError: different numbers of rows. TypeError: no array at all, or something that is not one.
      IndexError: an array without axes.

    torch counterpart: `torch.utils.data.TensorDataset`.

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
