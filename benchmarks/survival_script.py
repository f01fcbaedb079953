"""The training of benchmarks/survival.py: a script as a user would write it, with a fault in one rank.

It runs under `jaxpar launch`. Its argument is JSON, the fields of `Orders`. A fault strikes inside of one
place: a signal or an asynchronous exception from a thread after some time, anything else in the main thread
at one of the calls of Python functions that the place makes. Reference runs measure how long that is and how
many calls there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS = (
    *("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "SEGFAULT", "OS_ABORT", "LOCK_GIL"),
    *("exception", "async exception", "slow rank", "full disk", "lost folder"),
)
FROM_A_THREAD = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "async exception")
PLACES = ("step", "compile", "save", "restore", "loader")
STEPS, EVERY, PAUSE = 32, 2, 0.1
"""Steps of a training, steps between two checkpoints, and seconds between two steps, as a real step has: a
SIGTERM takes one or two to reach all ranks."""
BATCH = 8
SLOW = 4.0
"""Seconds that a slow rank loses: more than jaxpar's deadlock watch waits, less than the step timeout."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of one rank of `n`, once, at the part `moment` (0 to 1) of a place in a step."""

    n: int
    rank: int
    kind: str
    place: str
    step: int
    moment: float
    attempt: int = 0


@dataclasses.dataclass(frozen=True)
class Orders:
    folder: str
    steps: int = STEPS
    measure: bool = False
    faults: tuple[dict[str, Any], ...] = ()
    sizes: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    """Seconds and calls of each place, as a reference run has measured them."""


class AsyncFault(Exception):
    """The exception that a thread raises in the main thread."""


class Faults:
    """Strikes in one place, or measures all of them."""

    def __init__(self, orders: Orders, rank: int, attempt: int) -> None:
        self.orders, self.folder = orders, Path(orders.folder)
        self.disk = self.folder / "disk"
        faults = [Fault(**fields) for fields in orders.faults]
        self.fault = next((f for f in faults if (f.rank, f.attempt) == (rank, attempt)), None)
        self.sizes: dict[str, tuple[float, int]] = {}
        self.rank = rank

    @contextlib.contextmanager
    def at(self, place: str, step: int) -> Iterator[None]:
        fault = self.fault
        if self.orders.measure:
            yield from self._measured(place)
        elif fault and fault.place == place and (step == fault.step or place in ("compile", "restore")):
            self.fault = None
            seconds, calls = self.orders.sizes[place]
            if fault.kind in FROM_A_THREAD:
                timer = threading.Timer(fault.moment * seconds, self.strike, (fault.kind,))
                timer.daemon = True
                timer.start()
                yield
            else:
                yield from self._at_call(int(fault.moment * calls), lambda: self.strike(fault.kind))
        else:
            yield

    def _measured(self, place: str) -> Iterator[None]:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        begin = time.monotonic()
        sys.setprofile(count)
        yield
        sys.setprofile(None)
        self.sizes[place] = time.monotonic() - begin, calls
        write(self.folder / f"sizes-{self.rank}", json.dumps(self.sizes))

    def _at_call(self, number: int, strike: Callable[[], None]) -> Iterator[None]:
        remaining = number

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal remaining
            if event == "call":
                remaining -= 1
                if remaining < 0:
                    sys.setprofile(None)
                    strike()

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)
        if remaining >= 0:  # fewer calls than in the reference run
            strike()

    def strike(self, kind: str) -> None:
        write(self.folder / "struck", str(time.time()))
        if kind.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, kind))
        elif kind == "SEGFAULT":
            ctypes.string_at(1)
        elif kind == "OS_ABORT":
            os.abort()
        elif kind == "LOCK_GIL":
            while True:
                ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL during the call
        elif kind == "exception":
            raise RuntimeError("a fault on purpose")
        elif kind == "async exception":
            main = ctypes.c_ulong(threading.main_thread().ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(AsyncFault))
        elif kind == "slow rank":
            time.sleep(SLOW)
        elif kind == "full disk":
            fill(self.disk)
        elif kind == "lost folder":
            shutil.rmtree(self.disk / "checkpoints", ignore_errors=True)


def fill(disk: Path) -> None:
    """Fill a disk, a small one of the trial's own, to the last byte."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def train(orders: Orders) -> None:
    import jax
    import numpy as np
    import optax
    from flax import nnx

    import jaxpar
    from jaxpar import distributed

    distributed.init_process_group()
    rank, n = distributed.get_rank(), distributed.get_world_size()
    attempt = int(os.environ.get("JAXPAR_RESTART_COUNT", "0"))
    folder, faults = Path(orders.folder), Faults(orders, rank, attempt)

    class Rows(jaxpar.data.Dataset):
        def __len__(self) -> int:
            return STEPS * BATCH * n

        def __getitem__(self, i: int) -> tuple[np.ndarray, np.int32]:
            draw = np.random.RandomState(i)
            return draw.randn(8).astype(np.float32), np.int32(draw.randint(4))

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.inner, self.norm = nnx.Linear(8, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
            self.dropout, self.outer = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x)))))

    def loss_fn(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()

    @nnx.jit
    def update(optimizer: nnx.Optimizer, net: nnx.Module, gradients: nnx.State) -> None:
        optimizer.update(net, gradients)

    rows = Rows()
    sampler = jaxpar.data.DistributedSampler(rows, n, rank, shuffle=True, seed=3)
    net = jaxpar.DistributedDataParallel(Net(nnx.Rngs(0)))
    items = {
        "net": net,
        "optimizer": nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param),
        "loader": jaxpar.data.DataLoader(rows, BATCH, sampler=sampler),
    }
    checkpointer = jaxpar.Checkpointer(folder / "disk" / "checkpoints", save_every=EVERY)
    start = 0
    if checkpointer.latest_step() is not None:
        with faults.at("restore", 0):
            start = checkpointer.restore(**items).step + 1
    batches = iter(items["loader"])
    for step in range(start, orders.steps):
        with faults.at("loader", step):
            x, y = next(batches)
        with faults.at("compile" if step == start else "step", step):
            loss, gradients = net.value_and_grad(loss_fn)(x, y)
            update(items["optimizer"], net, gradients)
            jax.block_until_ready(loss)
        jaxpar.beat(step)
        time.sleep(PAUSE)
        if step == start:
            write(folder / f"first-{attempt}-{rank}", f"{start} {time.time()}")
        with faults.at("save", step) if step % EVERY == 0 else contextlib.nullcontext():
            checkpointer.save(step, **items)
    checkpointer.close()
    write(folder / f"final-{rank}", digest((nnx.state(net), nnx.state(items["optimizer"]))))


def digest(tree: object) -> str:
    import jax
    import numpy as np

    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def write(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    train(Orders(**json.loads(sys.argv[1])))
