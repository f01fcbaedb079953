"""From the rows of a batch to the batch, with a note on an error that says which row it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from ._collate import default_collate, is_numeric
from ._tensor_dataset import TensorDataset

Collate = Callable[[Any], Any]
Fetch = Callable[[int, Any], Any]
"""`fetch(number, index) -> batch`: `number` counts the batches of an epoch, for the notes."""

END = object()
"""What comes after the last batch of an iterable."""


def is_stream(dataset: Any) -> bool:
    """Whether a data set is only iterated over; one with `__getitem__` is asked for its rows.

    torch's IterableDataset inherits a `__getitem__` that raises, and is known by its name.
    """
    if any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def fetcher(dataset: Any, collate: Collate, together: bool, drop_last: bool) -> Fetch:
    """`together`: whether an index is the rows of a batch, or one row."""
    if is_stream(dataset):
        return _Stream(dataset, collate, together, drop_last)
    if together and collate is default_collate:
        # One look-up for each array gives what collating the rows one by one would.
        if type(dataset) is TensorDataset and dataset.numeric:
            return LookUp(dataset.gather)
        if type(dataset) is np.ndarray and dataset.ndim and is_numeric(dataset.dtype):
            return LookUp(lambda rows: TensorDataset(dataset).gather(rows)[0])
    return _Rows(dataset, collate, together)


class LookUp:
    """Arrays in memory, which are asked for all rows of a batch at once."""

    def __init__(self, gather: Callable[[Any], Any]):
        self.gather = gather

    def __call__(self, number: int, rows: Any) -> Any:
        try:
            return self.gather(rows)
        except Exception as error:
            _fail(error, f"in batch {number}")


def _fail(error: Exception, where: str) -> NoReturn:
    """Raises the same error with the place. StopIteration would end the epoch without a word, as in torch."""
    if isinstance(error, StopIteration):
        raise RuntimeError(f"DataLoader: StopIteration was raised {where}; that is no end.") from error
    error.add_note(f"DataLoader: raised {where}.")
    raise error


class _Rows:
    """A data set that is asked for its rows."""

    def __init__(self, dataset: Any, collate: Collate, together: bool):
        self.dataset, self.collate, self.together = dataset, collate, together

    def __call__(self, number: int, index: Any) -> Any:
        samples = self._samples(number, index) if self.together else self._one(number, index)
        try:
            return self.collate(samples)
        except Exception as error:
            what = f"rows {list(index)}" if self.together else f"row {index!r}"
            _fail(error, f"while {what} of batch {number} were put together")

    def _one(self, number: int, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            _fail(error, f"by dataset[{index!r}], sample {number}")

    def _samples(self, number: int, rows: Iterable[Any]) -> Any:
        together = getattr(self.dataset, "__getitems__", None)
        if together:
            try:
                return together(rows)
            except Exception as error:
                _fail(error, f"by dataset.__getitems__({rows!r}), batch {number}")
        samples: list[Any] = []
        row = None
        try:
            for row in rows:
                samples.append(self.dataset[row])
        except Exception as error:
            _fail(error, f"by dataset[{row!r}], sample {len(samples)} of batch {number}")
        return samples


class _Stream:
    """A data set that is iterated over, by one thread at a time."""

    def __init__(self, dataset: Any, collate: Collate, together: bool, drop_last: bool):
        self.rows, self.collate = iter(dataset), collate
        self.together, self.drop_last = together, drop_last
        self.read, self.ended = 0, False
        self.lock = threading.Lock()  # after an error a thread may be at its last batch while another begins

    def __call__(self, number: int, index: Any) -> Any:
        with self.lock:
            return self._batch(number, index)

    def _batch(self, number: int, index: Any) -> Any:
        samples = []
        for _ in index if self.together else (0,):
            sample = END if self.ended else self._next(number)
            if sample is END:
                break
            samples.append(sample)
        if not samples or (self.drop_last and self.together and len(samples) < len(index)):
            return END
        try:
            return self.collate(samples if self.together else samples[0])
        except Exception as error:
            _fail(error, f"while the samples of batch {number} were put together")

    def _next(self, number: int) -> Any:
        try:
            sample = next(self.rows)
        except StopIteration:
            self.ended = True
            return END
        except Exception as error:
            _fail(error, f"by the data set's iterator, sample {self.read}, in batch {number}")
        self.read += 1
        return sample
