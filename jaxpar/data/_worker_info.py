"""A worker's number, seeds and data set.

torch seeds Python's, NumPy's and its own default generator in every worker process. Threads share Python's
and NumPy's, so each worker also has generators of its own, with the numbers that torch's worker draws.

Source: torch/utils/data/_utils/worker.py.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import WorkerError
from ..random import Generator
from ._fetch import Fetch, Index, fetcher


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerGenerators:
    """A worker's own generators, which draw what torch's worker draws from its default ones.

    `random_generator` replaces the module `random`, `torch_generator` torch's default generator,
    `numpy_generator` `numpy.random`.
    """

    random_generator: random.Random
    torch_generator: Generator
    numpy_generator: np.random.RandomState


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The calling worker's number, seed, data set and generators.

    `id` counts from 0 to `num_workers` - 1; `seed` is the epoch's base seed + `id`; `dataset` is the data
    set, in a process its copy; `rng` are the worker's generators; `worker_method` is "thread" or
    "multiprocessing".

    torch counterpart: the same; its `rng` is None in processes.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: WorkerGenerators
    worker_method: str


_of_process: WorkerInfo | None = None
_of_thread = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """Return the calling worker's `WorkerInfo`, or None, as `torch.utils.data.get_worker_info`.

    An iterable data set takes its share by it: `itertools.islice(rows, info.id, None, info.num_workers)`. A
    single thread reads an iterable, so `num_workers` is 1 there.

    >>> from jaxpar import data
    >>> print(data.get_worker_info())
    None
    """
    # A thread started by a worker thread gets None; all threads of a worker process get its info.
    return getattr(_of_thread, "info", _of_process)


def set_worker_info(info: WorkerInfo) -> None:
    global _of_process
    if info.worker_method == "thread":
        _of_thread.info = info
    else:
        _of_process = info


@dataclasses.dataclass(frozen=True)
class Job:
    workers: int
    base_seed: int
    initialise: Callable[[int], Any] | None
    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool
    drop_last: bool

    def info(self, worker: int, method: str) -> WorkerInfo:
        seed = self.base_seed + worker
        rng = WorkerGenerators(
            random.Random(seed), Generator(seed), np.random.RandomState(numpy_seed(self.base_seed, worker))
        )
        return WorkerInfo(worker, self.workers, seed, self.dataset, rng, method)

    def fetcher(self) -> Fetch:
        return fetcher(self.dataset, self.collate, self.batched, self.drop_last)

    def begin(self, info: WorkerInfo) -> BaseException | None:
        """Register the caller as that worker, and return the error of `worker_init_fn`, if any."""
        set_worker_info(info)
        try:
            if self.initialise is not None:
                self.initialise(info.id)
        except BaseException as error:
            error.add_note(f"DataLoader: raised by worker_init_fn({info.id}).")
            return error
        return None


def numpy_seed(base_seed: int, worker: int) -> np.ndarray:
    """Return [4] uint32, with which torch seeds `numpy.random`."""
    # torch's _generate_state copies the mixing of NumPy's SeedSequence, so these are the same four numbers.
    entropy = [worker, base_seed % 2**32, base_seed >> 32, 0]
    return np.random.SeedSequence(entropy).generate_state(4)


def batch_text(number: int, index: Index) -> str:
    """Return "batch 3, rows [6, 7]" for errors; the rows of an iterable data set have no numbers."""
    rows = np.atleast_1d(index).tolist() if isinstance(index, (list, np.ndarray)) else [index]
    return f"batch {number}" if rows[:1] == [None] else f"batch {number}, rows {rows}"


def ordinary(error: BaseException, worker: int, number: int, index: Index) -> Exception:
    """Return the error as one that can be raised in the loop; SystemExit there would end the training."""
    if isinstance(error, Exception):
        return error
    stopped = WorkerError(
        f"DataLoader worker {worker}: {error!r} was raised while it made {batch_text(number, index)}. Raised "
        "in the loop it would end the training as if it were complete; raise an Exception instead."
    )
    stopped.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        stopped.add_note(note)
    return stopped
