"""What loaders with worker processes give, torch's and ours: one program for both, which prints JSON.

    python tests/worker_cases.py torch|forkserver|spawn|threads

It is a program because torch forks its workers, which a process that runs JAX must not do, and because
processes import what they run from a file.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import warnings

import numpy as np

KIT = sys.argv[1] if __name__ == "__main__" else None


def kit():
    if KIT == "torch":
        import torch.utils.data as it
    else:
        import jaxpar.data as it
    return it


def info():
    """The worker of whichever library runs this one."""
    for name in ("jaxpar.data", "torch.utils.data"):
        if name in sys.modules and (found := sys.modules[name].get_worker_info()) is not None:
            return found
    return None


class Numbers:
    """Row i is i."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i


class Workers(Numbers):
    """Which worker reads a row, and what it knows of itself."""

    def __getitem__(self, i):
        worker = info()
        return i, worker.id, worker.num_workers, worker.seed, len(worker.dataset)


class Draws(Numbers):
    """Random numbers of Python, NumPy and torch, as a script draws them in a worker."""

    def __getitem__(self, i):
        worker = info()
        if worker.rng is None:
            import torch

            return random.random(), np.random.rand(), torch.rand(2).tolist()
        if worker.worker_method == "multiprocessing":
            return random.random(), np.random.rand(), worker.rng.torch_generator.rand(2).tolist()
        rng = worker.rng
        return rng.random_generator.random(), rng.numpy_generator.rand(), rng.torch_generator.rand(2).tolist()


class OwnDraws(Draws):
    """The same from the worker's own generators, where there are some."""

    def __getitem__(self, i):
        rng = info().rng
        if rng is None:
            return super().__getitem__(i)
        return rng.random_generator.random(), rng.numpy_generator.rand(), rng.torch_generator.rand(2).tolist()


class Failing(Numbers):
    """Cannot give some of its rows."""

    def __getitem__(self, i):
        if i in (4, 9):
            raise KeyError(f"row {i}")
        return i


class IterableDataset:
    """The name is what makes it a stream, in both libraries' eyes; torch wants its own class."""

    def __init__(self, rows, share):
        self.rows, self.share = rows, share

    def __iter__(self):
        worker = info()
        if self.share == "all" or worker is None:
            return iter(range(self.rows))
        if self.share == "turns":
            return itertools.islice(range(self.rows), worker.id, None, worker.num_workers)
        # the first workers have much, the last one nothing
        return iter(range(100 * worker.id, 100 * worker.id + 7 * (worker.num_workers - 1 - worker.id)))


def stream(rows=11, share="turns"):
    if KIT != "torch":
        return IterableDataset(rows, share)
    from torch.utils import data

    return type("Stream", (IterableDataset, data.IterableDataset), {})(rows, share)


def shift(worker):
    info().dataset.rows += 2 * worker


CASES = {
    "in order": lambda: (Numbers(), {"batch_size": 4}),
    "shuffled": lambda: (Numbers(), {"batch_size": 4, "shuffle": True}),
    "shuffled, one worker": lambda: (Numbers(), {"batch_size": 4, "shuffle": True, "num_workers": 1}),
    "persistent": lambda: (Numbers(), {"batch_size": 4, "shuffle": True, "persistent_workers": True}),
    "three workers": lambda: (Workers(), {"batch_size": 2, "num_workers": 3}),
    "one ahead": lambda: (Workers(), {"batch_size": 2, "prefetch_factor": 1}),
    "many ahead": lambda: (Workers(), {"batch_size": 2, "prefetch_factor": 20}),
    "no batches": lambda: (Workers(), {"batch_size": None, "shuffle": True}),
    "drop_last": lambda: (Workers(), {"batch_size": 4, "drop_last": True}),
    "random numbers": lambda: (Draws(), {"batch_size": 4, "shuffle": True}),
    "persistent random numbers": lambda: (Draws(), {"batch_size": 4, "persistent_workers": True}),
    "own random numbers": lambda: (OwnDraws(), {"batch_size": 4, "shuffle": True}),
    "errors": lambda: (Failing(), {"batch_size": 2}),
    "a stream": lambda: (stream(share="turns"), {"batch_size": 2}),
    "a stream, three workers": lambda: (stream(), {"batch_size": 2, "num_workers": 3}),
    "a stream, read by each": lambda: (stream(share="all"), {"batch_size": 2}),
    "a stream, unequal": lambda: (stream(share="unequal"), {"batch_size": 2, "num_workers": 3}),
    "a stream, no batches": lambda: (stream(share="unequal"), {"batch_size": None, "num_workers": 3}),
    "a stream, drop_last": lambda: (stream(share="unequal"), {"batch_size": 3, "drop_last": True}),
    "a stream, persistent": lambda: (stream(), {"batch_size": 2, "persistent_workers": True}),
    "a stream, worker_init_fn": lambda: (stream(share="all"), {"batch_size": 2, "worker_init_fn": shift}),
}
THREADS = [name for name in CASES if not name.startswith("a stream")]
"""What threads give as well: they share a stream, so one of them reads it."""


def plain(batch):
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(value) for value in batch]
    return np.asarray(batch).tolist()


def batches(loader):
    """All batches of an epoch; an error is its class, and the next batch follows."""
    epoch = iter(loader)
    while True:
        try:
            yield plain(next(epoch))
        except StopIteration:
            return
        except KeyError as error:
            yield type(error).__name__


def outcome(case):
    """Two epochs, and where they leave the default generator."""
    dataset, options = CASES[case]()
    options = {"num_workers": 2, **options}
    if KIT == "torch":
        import torch

        torch.manual_seed(3)
    else:
        from jaxpar.random import Generator

        default = Generator(3)
        options["seed"] = default
        if KIT != "threads":
            options["multiprocessing_context"] = KIT
    loader = kit().DataLoader(dataset, **options)
    epochs = [list(batches(loader)) for _ in range(2)]
    state = torch.get_rng_state().numpy() if KIT == "torch" else default.get_state()
    return [*epochs, int(state.astype(np.int64) @ np.arange(len(state)))]


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    print(json.dumps({case: outcome(case) for case in (CASES if KIT != "threads" else THREADS)}))
