"""Read a batch from its rows. Errors get a note that names the row."""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ._collate import Batch, Sample, default_collate, is_numeric
from ._dataset import Subset, TensorDataset, is_stream

Dataset: TypeAlias = Any
"""Anything with `__getitem__`, or an iterable."""
Index: TypeAlias = Any
"""An element of a sampler: a row, or the rows of a batch."""
Collate = Callable[[Any], Batch]
Gather = Callable[[Index], Batch]
Fetch = Callable[[int, Index], Batch]
"""`fetch(number, index) -> batch`: `number` counts the batches of an epoch, for the notes."""


class End(enum.Enum):
    """The marker after an iterable's last batch, identical in every process."""

    END = enum.auto()


END = End.END


def fetcher(dataset: Dataset, collate: Collate, batched: bool, drop_last: bool) -> Fetch:
    """Return the function that reads a batch. `batched`: whether an index is a batch's rows or one row."""
    if is_stream(dataset):
        return _IterableFetcher(dataset, collate, batched, drop_last)
    gather = look_up(dataset, collate) if batched else None
    if gather is not None:
        return functools.partial(_read_at_once, gather)
    return functools.partial(_read_rows, dataset, collate, batched)


def look_up(dataset: Dataset, collate: Collate) -> Gather | None:
    """Return a function that reads a batch by one look-up per array, where that equals collating rows."""
    return _look_up(dataset) if collate is default_collate else None


def _look_up(dataset: Dataset) -> Gather | None:
    # A subclass may override __getitem__, so only the exact types are looked up.
    if type(dataset) is TensorDataset and dataset.numeric:
        return dataset.gather
    if type(dataset) is np.ndarray and dataset.ndim and is_numeric(dataset.dtype):
        return lambda rows: TensorDataset(dataset).gather(rows)[0]
    if type(dataset) is Subset and (gather := _look_up(dataset.dataset)) is not None:
        indices = np.asarray(dataset.indices)
        # Booleans and nested lists may select other rows in NumPy than in dataset[index].
        if indices.dtype.kind in "iu" and indices.ndim == 1:
            return lambda rows: gather(indices[np.asarray(rows, np.intp)])
    return None


def _read_at_once(gather: Gather, number: int, rows: Index) -> Batch:
    try:
        return gather(rows)
    except Exception as error:
        _fail(error, f"in batch {number}")


def _fail(error: Exception, where: str) -> NoReturn:
    """Raise the error with a note of its origin. StopIteration would end the epoch silently, as in torch."""
    if isinstance(error, StopIteration):
        raise RuntimeError(f"DataLoader: StopIteration was raised {where}; that is no end.") from error
    error.add_note(f"DataLoader: raised {where}.")
    raise error


def _read_rows(dataset: Dataset, collate: Collate, batched: bool, number: int, index: Index) -> Batch:
    samples = _samples(dataset, number, index) if batched else _sample(dataset, number, index)
    try:
        return collate(samples)
    except Exception as error:
        what = f"rows {list(index)}" if batched else f"row {index!r}"
        _fail(error, f"while {what} of batch {number} were put together")


def _sample(dataset: Dataset, number: int, index: Index) -> Sample:
    try:
        return dataset[index]
    except Exception as error:
        _fail(error, f"by dataset[{index!r}], sample {number}")


def _samples(dataset: Dataset, number: int, rows: Iterable[Index]) -> list[Sample]:
    getitems = getattr(dataset, "__getitems__", None)
    if getitems:
        try:
            return getitems(rows)
        except Exception as error:
            _fail(error, f"by dataset.__getitems__({rows!r}), batch {number}")
    samples: list[Sample] = []
    row = None
    try:
        for row in rows:
            samples.append(dataset[row])
    except Exception as error:
        _fail(error, f"by dataset[{row!r}], sample {len(samples)} of batch {number}")
    return samples


class _IterableFetcher:
    def __init__(self, dataset: Dataset, collate: Collate, batched: bool, drop_last: bool):
        self.rows, self.collate = iter(dataset), collate
        self.batched, self.drop_last = batched, drop_last
        self.read, self.ended = 0, False
        self.lock = threading.Lock()  # after an error a worker may still be reading when the next one starts

    def __call__(self, number: int, index: Index) -> Batch:
        with self.lock:
            return self._batch(number, index)

    def _batch(self, number: int, index: Index) -> Batch:
        samples = []
        for _ in index if self.batched else (0,):
            # Workers that read ahead call again after the end, and not every iterator stays exhausted.
            sample = END if self.ended else self._next(number)
            if sample is END:
                break
            samples.append(sample)
        # An iterable's index sampler is infinite and yields no short batch to drop.
        if not samples or (self.drop_last and self.batched and len(samples) < len(index)):
            return END
        try:
            return self.collate(samples if self.batched else samples[0])
        except Exception as error:
            _fail(error, f"while the samples of batch {number} were put together")

    def _next(self, number: int) -> Sample:
        try:
            sample = next(self.rows)
        except StopIteration:
            self.ended = True
            return END
        except Exception as error:
            _fail(error, f"by the data set's iterator, sample {self.read}, in batch {number}")
        self.read += 1
        return sample
