"""DataLoader: batches of a data set, in torch's order under a seed, as NumPy arrays.

The position can be saved in the middle of an epoch, as the generator before the epoch's first draw and the
number of batches since. Loading repeats the draws. Source: torch/utils/data/dataloader.py.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import Any, cast

from .._arguments import whole
from ..random import Generator
from ._collate import default_collate, default_convert
from ._dataset import is_stream
from ._distributed_sampler import DistributedSampler
from ._epoch import Epoch, Position, ReadAhead, Workers, reused
from ._fetch import END, Dataset, look_up
from ._samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    generator_from_text,
    generator_to_text,
    source,
)
from ._worker_info import Job
from ._worker_threads import Threads

_READ_ONLY = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")

_GIVE_ARRAYS = (SequentialSampler, RandomSampler, DistributedSampler)
"""Exactly these types: a subclass may override `__iter__`, which `blocks` would ignore."""

_epochs = itertools.count()
"""Epoch numbers, by which worker processes notice a new epoch."""


class _InfiniteSampler:
    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class DataLoader:
    """Iterate over batches of a data set, as `torch.utils.data.DataLoader` (docs/semantics.md section 2.4).

    Args:
      dataset: anything with `__getitem__`, and `__len__` unless a sampler is given; or an iterable without
        `__getitem__`, which is read in order.
      batch_size: rows per batch; None yields single samples.
      shuffle: whether to permute the rows in each epoch.
      sampler: the rows of an epoch. batch_sampler: the lists of rows.
      num_workers: how many workers read ahead; 0 reads in the caller's thread. Workers are threads, of which
        one reads an iterable, unless there is a `multiprocessing_context`.
      collate_fn: turns a list of samples into a batch; `default_collate` if left out.
      pin_memory, pin_memory_device, in_order: accepted and not needed: `prefetch` copies to the devices while
        they compute, and batches always come in order.
      drop_last: whether a last batch of fewer rows is dropped.
      timeout: seconds to wait for a batch from the workers; 0 for no limit.
      worker_init_fn: called with the worker's number, by the worker, before it reads.
      multiprocessing_context: "spawn" or "forkserver", or such a context: workers are processes then. Data
        set, `collate_fn` and `worker_init_fn` are pickled; each process reads an iterable from its own copy.
      generator, seed: as for `RandomSampler`.
      prefetch_factor: how many batches each worker may be ahead; 2 if left out.
      persistent_workers: whether workers are kept from one epoch to the next.

    Raises: ValueError, AssertionError, TypeError: for arguments that torch refuses, with its messages. Errors
      of the data set, with a note that names the row and the batch. WorkerError: a worker process has died.

    >>> from jaxpar import data
    >>> [batch.tolist() for batch in data.DataLoader([1, 2, 3], batch_size=2)]
    [[1, 2], [3]]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: object = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | Generator | None = None,
    ):
        prefetch_factor = _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        stream = is_stream(dataset)
        _check_exclusive(stream, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.generator, self._draws = generator, source(generator, seed, "DataLoader")
        if sampler is None:
            if stream:
                sampler = _InfiniteSampler()
            elif shuffle:
                # Without an explicit generator the sampler draws a new seed for each epoch, as torch's does.
                sampler_seed = None if generator is not None else self._draws
                sampler = RandomSampler(dataset, generator=generator, seed=sampler_seed)
            else:
                sampler = SequentialSampler(dataset)
        if batch_sampler is not None:
            batch_size = None
        elif batch_size is not None:
            batch_sampler = BatchSampler(cast(Iterable[int], sampler), batch_size, drop_last)
        self.dataset, self.num_workers, self.prefetch_factor = dataset, num_workers, prefetch_factor
        self.pin_memory, self.pin_memory_device, self.in_order = pin_memory, pin_memory_device, in_order
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.multiprocessing_context = _context(multiprocessing_context, num_workers)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        # torch's default depends on automatic batching, too.
        self.collate_fn = collate_fn or (default_convert if batch_sampler is None else default_collate)
        self.persistent_workers = persistent_workers
        self._stream = stream
        self._promised: int | None = None
        self._position: Position | None = None
        self._resume: dict[str, Any] | None = None
        self._base_seed: int | None = None
        self._workers: Callable[[], Workers] | None = None
        self._ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        # The samplers were made from these values and would not follow a change; torch raises as well.
        if name in _READ_ONLY and getattr(self, "_ready", False):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        if not self._stream:
            return len(self._index_sampler)
        n = len(self.dataset)
        if self.batch_size is not None:
            n = n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        self._promised = n
        return n

    def __iter__(self) -> Epoch:
        if self.timeout and not self.num_workers:
            raise AssertionError("DataLoader: timeout is for workers; num_workers=0 requires timeout == 0")
        # A loaded state applies to one epoch only.
        resume, self._resume = self._resume, None
        if resume is not None:
            self._check_epoch(resume)
            self._restore(resume["start"])
        start = self._start() if resume is None else resume["start"]
        self._position = position = Position(start, promised=self._promised)
        # torch creates the index iterator before it draws the workers' seed: in each epoch, also without
        # workers, but once for persistent workers.
        index = self._index()
        if not self.persistent_workers or self._base_seed is None:
            self._base_seed = self._draws.draw_seed()
        # Skipping repeats the samplers' draws. Rows are not read, except of an iterable: it has no index.
        skipped = 0 if resume is None else resume["batches"]
        if not self._stream:
            self._skip(skipped, index)
            position.batches = skipped
        # After the skip, because an Epoch derives its next batch and worker from position.batches.
        epoch = self._epoch(index, position)
        if self._stream:
            self._skip(skipped, epoch)
        # Last: the draws above repeat the epoch's, from the state at its start.
        if resume is not None and resume["generator"] is not None:
            generator_from_text(self._draws, resume["generator"])
        return epoch

    def _skip(self, batches: int, epoch: Iterator[Any]) -> None:
        for number in range(batches):
            if next(epoch, END) is END:
                raise ValueError(
                    f"DataLoader: the state was saved after {batches} batches; the epoch has {number}."
                )

    def _epoch(self, index: Iterator[Any], position: Position) -> Epoch:
        job = self._job()
        if not self.num_workers:
            return Epoch(job.fetcher(), index, position, None)
        processes = self.multiprocessing_context is not None
        # Without persistent workers each epoch needs new ones: the job contains its base seed.
        if self._workers is None or not self.persistent_workers:
            self._workers = self._maker(job)
        ahead = ReadAhead(
            self._workers,
            job.workers,
            (self.prefetch_factor or 1) * self.num_workers,
            self.timeout,
            copies=processes,
            stateful=processes and self._stream,
        )
        # Worker processes make their own fetchers, so they need only a number that distinguishes the epochs.
        return Epoch(next(_epochs) if processes else job.fetcher(), index, position, ahead)

    def _job(self) -> Job:
        # Several threads would mix up the order of an iterable, which they share.
        alone = self._stream and self.multiprocessing_context is None
        return Job(
            1 if alone else self.num_workers,
            cast(int, self._base_seed),
            self.worker_init_fn,
            self.dataset,
            self.collate_fn,
            self.batch_sampler is not None,
            self.drop_last,
        )

    def _maker(self, job: Job) -> Callable[[], Workers]:
        context = self.multiprocessing_context
        if context is not None:
            from ._worker_processes import Processes

            make: Callable[[], Workers] = functools.partial(Processes, job, context)
        else:
            # Created once: threads that restart after an error continue their random streams.
            make = functools.partial(Threads, job, [job.info(i, "thread") for i in range(job.workers)])
        return reused(make) if self.persistent_workers else make

    def _index(self) -> Iterator[Any]:
        batches: Any = self.batch_sampler
        # Exact types only: a subclass may override __iter__, which the fast path skips.
        if type(batches) is BatchSampler and type(batches.sampler) in _GIVE_ARRAYS:
            sampler: Any = batches.sampler
            if look_up(self.dataset, self.collate_fn) is not None:
                return batches.arrays(sampler.blocks())
        return iter(self._index_sampler)

    # ---------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position, which JSON can store: the last epoch that was started, even if it was left
        with `break`, and how many of its batches were returned.
        """
        if self._resume is not None:
            return self._resume
        # Before the first epoch, and after the end of one, the position is the start of the next.
        position = self._position
        if position is None or position.ended:
            position = Position(self._start())
        # Others may draw from a shared generator in the middle of an epoch, so its state is stored as well. A
        # generator given to the loader is also its sampler's: repeating the epoch's draws restores it.
        shared = self.generator is None and position.batches > 0
        return {
            **self._form(),
            "batches": position.batches,
            "start": position.start,
            "generator": generator_to_text(self._draws) if shared else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called: the same rows, in the same order, then the same draws.

        A sampler of an outside library provides its own `state_dict`, or must give the same order again. An
        iterable is read again up to the position.

        Raises: ValueError: the state belongs to a loader with different batches.
        """
        for name, value in self._form().items():
            if state[name] != value:
                raise ValueError(
                    f"DataLoader: the state was saved with {name}={state[name]} and this loader has "
                    f"{name}={value}, so its batches are others. Make it as it was, or begin an epoch."
                )
        self._restore(state["start"])
        self._position = None
        self._resume = state if state["batches"] else None

    def _form(self) -> dict[str, Any]:
        rows = len(self.dataset) if hasattr(self.dataset, "__len__") else None
        return {"rows": rows, "batch_size": self.batch_size, "drop_last": self.drop_last}

    def _start(self) -> dict[str, Any]:
        sampler = self._index_sampler
        sampler_state = sampler.state_dict() if hasattr(sampler, "state_dict") else {}
        # Persistent workers are seeded in their first epoch only.
        seed = self._base_seed if self.persistent_workers else None
        return {"generator": generator_to_text(self._draws), "sampler": sampler_state, "base_seed": seed}

    def _restore(self, start: dict[str, Any]) -> None:
        if start["sampler"]:
            self._index_sampler.load_state_dict(start["sampler"])
        generator_from_text(self._draws, start["generator"])
        self._base_seed = start.get("base_seed")

    def _check_epoch(self, resume: dict[str, Any]) -> None:
        saved = resume["start"]["sampler"].get("epoch")
        if saved is not None and (now := self._index_sampler.state_dict()["epoch"]) != saved:
            raise ValueError(
                f"DataLoader: the state was saved in the middle of epoch {saved} and set_epoch({now}) was "
                f"called since. Go on with epoch {saved}."
            )


def _check_workers(n: int, timeout: float, factor: int | None, persistent: bool) -> int | None:
    if whole("DataLoader", "num_workers", n) < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if n == 0 and factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if factor is not None and factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if factor == 0:
        raise AssertionError("prefetch_factor must be greater than 0")
    if persistent and n == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")
    return 2 if n and factor is None else factor


def _context(context: object, n: int) -> BaseContext | None:
    if context is None:
        return None
    if not n:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={n}"
        )
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={context!r}"
            )
        context = multiprocessing.get_context(context)
    if not isinstance(context, BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the "
            f"start method, but got multiprocessing_context={context}"
        )
    if context.get_start_method() == "fork":
        raise ValueError(
            "DataLoader: multiprocessing_context='fork' copies JAX's locks without the threads that open "
            "them, so a worker may wait for ever. Take 'forkserver' or 'spawn', or leave it out for threads."
        )
    return context


def _check_exclusive(
    stream: bool,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: object,
    batch_sampler: object,
    drop_last: bool,
) -> None:
    if stream:
        what = "DataLoader with IterableDataset: expected unspecified"
        if shuffle not in {False, None}:
            raise ValueError(f"{what} shuffle option, but got shuffle={shuffle}")
        if sampler is not None:
            raise ValueError(f"{what} sampler option, but got sampler={sampler}")
        if batch_sampler is not None:
            raise ValueError(f"{what} batch_sampler option, but got batch_sampler={batch_sampler}")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
