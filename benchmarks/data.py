"""jaxpar.data: what a batch costs beside torch's DataLoader, what workers and prefetch save.

    python benchmarks/data.py [loader workers processes prefetch] [--rounds 15] [--json]

The sides of every comparison are timed in turn, many short rounds of each, and compared by their
medians, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jaxpar

DEVICES = 4
if __name__ == "__main__":  # worker processes import this file, too
    jaxpar.virtual_devices(DEVICES)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jaxpar.data import DataLoader, TensorDataset, prefetch  # noqa: E402
from jaxpar.random import Generator  # noqa: E402

OVERHEAD_BAR, PREFETCH_BAR = 100.0, 1.1
"""Microseconds a batch above the look-up of its rows; a loop with prefetch against the steps alone."""


def medians(
    sides: dict[str, Callable[[], int]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds for each of the batches that a side says it made; the sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, run in sides.items():
            began = clock()
            n = run()
            times[name].append((clock() - began) / n)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


# --------------------------------------------------------------------------------------------- loader


def count(batches) -> int:
    return sum(1 for _ in batches)


def loader(options: argparse.Namespace) -> list[dict]:
    """60,000 rows in memory, shuffled: microseconds of CPU time a batch, with the start of an epoch."""
    import torch
    from torch.utils import data

    x, y = np.random.default_rng(0).random((60_000, 784), np.float32), np.arange(60_000)
    mine, twin = TensorDataset(x, y), data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    rows = []
    for size in (32, 128, 1024):

        def bare(size: int = size) -> int:
            """An order as the loader draws it, and the look-up alone."""

            def batches():
                order = Generator(0).randperm(len(x))
                for i in range(0, len(x), size):
                    part = order[i : i + size]
                    yield x.take(part, axis=0), y.take(part)

            return count(batches())

        took = medians(
            {
                "bare": bare,
                "jaxpar": lambda size=size: count(DataLoader(mine, size, shuffle=True)),
                "torch": lambda size=size: count(data.DataLoader(twin, size, shuffle=True)),
            },
            options.rounds,
            time.process_time,  # all is done by this thread, and other programs do not count
        )
        us = {name: seconds * 1e6 for name, seconds in took.items()}
        over = us["jaxpar"] - us["bare"]
        rows.append({"what": "loader", "batch_size": size, **us, "overhead_us": over, "bar": OVERHEAD_BAR})
        say(
            options,
            f"batch of {size:4}: jaxpar {us['jaxpar']:6.0f} us   torch {us['torch']:6.0f} us   "
            f"order and look-up {us['bare']:6.0f} us   overhead {over:4.0f} us  (bar {OVERHEAD_BAR:.0f})",
        )
    return rows


# -------------------------------------------------------------------------------------------- workers


class Waiting:
    """Each row is 1 ms away, as on a disk or in a net."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int) -> np.ndarray:
        time.sleep(0.001)
        return np.full(64, i, np.float32)


class Packed:
    """Each row is unpacked, which leaves the interpreter to other threads."""

    def __init__(self):
        self.row = zlib.compress(np.random.default_rng(0).integers(0, 8, 200_000, np.uint8).tobytes())

    def __len__(self) -> int:
        return 128

    def __getitem__(self, i: int) -> np.ndarray:
        return np.frombuffer(bytearray(zlib.decompress(self.row)), np.uint8)


def workers(options: argparse.Namespace) -> list[dict]:
    """Milliseconds for a batch of 16 rows, with all that starting and ending workers costs."""
    from torch.utils import data

    rows = []
    for dataset in (Waiting(), Packed()):
        kind = type(dataset).__name__
        sides: dict[str, Callable[[], int]] = {
            f"{n}": lambda n=n, d=dataset: count(DataLoader(d, 16, num_workers=n)) for n in (0, 1, 2, 4)
        }
        sides["torch, 2"] = lambda d=dataset: count(data.DataLoader(d, 16, num_workers=2))
        took = medians(sides, max(1, options.rounds // 5))
        ms = {name: seconds * 1e3 for name, seconds in took.items()}
        rows.append({"what": "workers", "data": kind, **ms})
        say(options, f"{kind:8} num_workers " + "   ".join(f"{name}: {t:6.2f} ms" for name, t in ms.items()))
    return rows


# ------------------------------------------------------------------------------------------ processes


class Augmented(Waiting):
    """Each row is a photo that is cropped, resized and flipped: NumPy, with much Python around it."""

    def __init__(self, size: int = 224):
        from jaxpar.data import transforms

        self.photo = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size, seed=0),
                transforms.RandomHorizontalFlip(seed=0),
                transforms.ToArray(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __getitem__(self, i: int) -> np.ndarray:
        return self.transform(self.photo)


class Python(Augmented):
    """Each row is a loop of plain Python, which threads run one after the other."""

    def __getitem__(self, i: int) -> np.ndarray:
        return np.full(64, sum(k * k for k in range(20_000)) % 7, np.float32)


class Bare(Augmented):
    """Each row is there already: what it costs to bring 9.6 MB to the loop."""

    def __init__(self) -> None:
        self.row = np.zeros((224, 224, 3), np.float32)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.row


def processes(options: argparse.Namespace) -> list[dict]:
    """Milliseconds for a batch of 16 rows. Workers stay from epoch to epoch; their start does not count."""

    rows = []
    for dataset in (Augmented(), Python(), Bare()):
        kind = type(dataset).__name__
        kept = {"num_workers": 2, "persistent_workers": True}
        own = {**kept, "multiprocessing_context": "forkserver"}
        loaders = {
            "none": DataLoader(dataset, 16),
            "2 threads": DataLoader(dataset, 16, **kept),
            "2 processes": DataLoader(dataset, 16, **own),
        }
        sides = {name: functools.partial(count, loader) for name, loader in loaders.items()}
        ms = {name: t * 1e3 for name, t in medians(sides, max(2, options.rounds // 5)).items()}
        rows.append({"what": "processes", "data": kind, **ms})
        say(options, f"{kind:9} " + "   ".join(f"{name}: {t:6.1f} ms" for name, t in ms.items()))
    return rows + [transport(options, size) for size in (2**16, 2**19, 2**22, 2**25)]


def transport(options: argparse.Namespace, size: int) -> dict:
    """Milliseconds of CPU time to bring a batch of so many bytes from a worker, both sides together."""
    from jaxpar.data import _worker_messages as messages

    batch, small, ms = np.ones(size, np.uint8), messages.SMALL, {}
    for way, messages.SMALL in (("shared memory", 0), ("connection", 2**62)):
        sides = {way: functools.partial(_through, batch)}
        ms[way] = medians(sides, options.rounds, time.process_time)[way] * 1e3
    messages.SMALL = small
    said = "   ".join(f"{way}: {t:6.2f} ms" for way, t in ms.items())
    say(options, f"{size / 2**20:7.3f} MiB   {said}")
    return {"what": "transport", "bytes": size, **ms}


def _through(batch: np.ndarray) -> int:
    """Packs, sends, receives and reads a batch once."""
    from jaxpar.data import _worker_messages as messages

    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        sender = threading.Thread(target=lambda: messages.pack(batch).send(theirs))
        sender.start()
        messages.receive(ours).unpack().sum()
        sender.join()
    return 1


# ------------------------------------------------------------------------------------------- prefetch


def steps(options: argparse.Namespace) -> list[dict]:
    """A loop over host batches: steps alone, with prefetch, and with a copy before each step."""
    placement = jaxpar.Placement(tuple(jaxpar.devices()))

    @jax.jit
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        y = x.reshape(-1, w.shape[0])
        for _ in range(options.depth):
            y = jnp.tanh(y @ w)
        return w + 1e-6 * (y.T @ y) / len(y)

    w = jax.device_put(np.eye(256, dtype=np.float32), placement.replicated)
    batch = np.random.default_rng(0).random((64, 16, 256), np.float32)
    (there,) = prefetch([batch], placement)
    n = 10

    def train(batches) -> int:
        v = w
        for x in batches:
            v = step(v, x)
            v.block_until_ready()
        return n

    def copied() -> int:
        return train(next(iter(prefetch([batch], placement))) for _ in range(n))

    def copies() -> int:
        for _ in range(n):
            (x,) = prefetch([batch], placement)
            x.block_until_ready()
        return n

    sides = {
        "alone": lambda: train(itertools.repeat(there, n)),
        "prefetch": lambda: train(prefetch(itertools.repeat(batch, n), placement)),
        "copied": copied,
        "copy": copies,
    }
    ms = {name: t * 1e3 for name, t in medians(sides, 2 * options.rounds).items()}
    cpu = medians(sides, options.rounds, time.process_time)
    ratio, cpu_ratio = ms["prefetch"] / ms["alone"], cpu["prefetch"] / cpu["alone"]
    say(
        options,
        f"step alone {ms['alone']:6.2f} ms   with prefetch {ms['prefetch']:6.2f} ms   ratio {ratio:.3f}  cpu "
        f"{cpu_ratio:.3f}  (bar {PREFETCH_BAR})   copied before it {ms['copied']:6.2f} ms   "
        f"a copy {ms['copy']:.2f} ms",
    )
    return [{"what": "prefetch", **ms, "ratio": ratio, "cpu": cpu_ratio, "bar": PREFETCH_BAR}]


PARTS = {"loader": loader, "workers": workers, "processes": processes, "prefetch": steps}


def say(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {list(PARTS)}; all if left out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--depth", type=int, default=12, help="matrix products of a step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "jax")}
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    say(options, f"{os.cpu_count()} cores, {DEVICES} x cpu, {said}")
    rows = [row for part in options.parts or PARTS for row in PARTS[part](options)]
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), **versions, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
