"""Virtual devices: do training loops on them ever stop, and what do their threads cost?

    python benchmarks/virtual_devices.py soak [--steps 100000] [--n 2 4 8 16]
    python benchmarks/virtual_devices.py bound [--repeat 3]
    python benchmarks/virtual_devices.py matmul

`soak` runs loops that never wait, with the threads that jaxpar.virtual_devices chooses. `bound` runs
them with pools around the edge, to see where they stop. `matmul` times large products with jaxpar's
pool against XLA's default one. All take `--json`.

Every loop runs in a process of its own, which says how far it is twice a second; one that makes no
step for `--patience` seconds has stalled, and is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
import warnings
from concurrent import futures
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LOOPS = {
    "train": "a donated training step with one all-reduce",
    "mixed": "that, an evaluation, its result on one device, a program there, and eager DataParallel",
    "callback": "the training step, and in it on every device a host callback that takes 256 KiB",
    "threads": "the training step in 8 threads, all starting afresh every 300 steps",
    "locked": "the same, and each launch under one lock",
}
TIMES = {"callback": 0.1, "threads": 10, "locked": 10}
"""How many times the steps a loop runs: callbacks are slow, and threads seldom meet so that they stop."""

# ------------------------------------------------------------------------------ in the watched process


def training(n: int, kind: str, steps: int, wait_every: int) -> None:
    """Runs a loop and prints its pool, how far it is, and how long it took."""
    import jaxpar

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pools that are too small are what `bound` is about
        jaxpar.virtual_devices(n)
    workers = 8 if kind in ("threads", "locked") else 1
    barrier, lock = threading.Barrier(workers), threading.Lock()
    loop = Loop(n, kind)
    loops = [loop, *(copy.copy(loop) for _ in range(workers - 1))]
    done = [0] * workers

    def work(i):
        loops[i].place_weights()
        for done[i] in range(steps // workers):
            if workers > 1 and done[i] % 300 == 0:
                loops[i].wait()
                barrier.wait()
            with lock if kind == "locked" else contextlib.nullcontext():
                loops[i].step(done[i])
            if wait_every and (done[i] + 1) % wait_every == 0:
                loops[i].wait()
        loops[i].wait()

    tell("pool", int(os.environ.get("PJRT_NPROC", os.cpu_count() or 1)))
    began, before = time.perf_counter(), 0
    with futures.ThreadPoolExecutor(workers) as threads:
        running = [threads.submit(work, i) for i in range(workers)]
        while futures.wait(running, timeout=0.5).not_done:
            if sum(done) > before:
                tell("steps", before := sum(done))
        for future in running:
            future.result()
    tell("seconds", time.perf_counter() - began)


class Loop:
    """One training loop: its programs, compiled, and its weights."""

    def __init__(self, n: int, kind: str):
        import jax
        import numpy as np
        from flax import nnx

        import jaxpar

        self.kind, self.devices = kind, jaxpar.Placement(tuple(jaxpar.devices()[:n]))
        width = 256 if kind == "callback" else 16
        self.host = np.full(((256 if kind == "callback" else 4) * n, width), 0.01, np.float32)
        self.batch = jax.device_put(self.host, self.devices.stacked)
        self.eager = jaxpar.DataParallel(nnx.Linear(width, width, rngs=nnx.Rngs(0)))

        def forward(w):
            def module(x):
                if kind == "callback":
                    x = jax.pure_callback(np.copy, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
                return x @ w

            return module

        def descend(w, x):
            return w - 1e-3 * jax.grad(lambda w: (jaxpar.data_parallel(forward(w), x) ** 2).mean())(w)

        self.train = jax.jit(descend, donate_argnums=0)
        self.evaluate = jax.jit(lambda w, x: jaxpar.data_parallel(forward(w), x))
        self.add = jax.jit(lambda total, y: total + y.sum(), donate_argnums=0)
        self.place_weights()
        self.step(0)  # compiles
        self.wait()

    def place_weights(self) -> None:
        import jax
        import numpy as np

        width = self.host.shape[1]
        self.w = jax.device_put(np.eye(width, dtype=np.float32), self.devices.replicated)
        self.total = jax.device_put(np.float32(0), self.devices.devices[0])

    def step(self, i: int) -> None:
        import jax

        if self.kind != "mixed":
            self.w = self.train(self.w, self.batch)
            return
        x = jax.device_put(self.host, self.devices.stacked)
        self.w = self.train(self.w, x)
        y = jax.device_put(self.evaluate(self.w, x), self.devices.devices[0])
        self.total = self.add(self.total, y)
        if i % 4 == 0:
            self.total = self.add(self.total, self.eager(self.host))

    def wait(self) -> None:
        import numpy as np

        assert np.isfinite(np.asarray(self.w).sum() + np.asarray(self.total))


def products(n: int, size: int) -> None:
    """Times products whenever a line comes: one on the first device, and one on every device at once."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import jaxpar

    if "PJRT_NPROC" not in os.environ and "JAX_NUM_CPU_DEVICES" not in os.environ:
        jaxpar.virtual_devices(n)
    mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    random = np.random.RandomState(0)
    a = random.randn(size, size).astype(np.float32)

    def put(x, *spec):
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, P(*spec)))

    one, a1 = jax.jit(lambda a, b: a @ b), jax.device_put(a, jax.devices()[0])
    every = jax.jit(jax.shard_map(lambda a, b: a @ b, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
    an, bn = put(np.concatenate([a] * n), "d"), put(a)

    def seconds(f, *args):
        start = time.perf_counter()
        jax.block_until_ready(f(*args))
        return time.perf_counter() - start

    seconds(one, a1, a1), seconds(every, an, bn)
    tell("pool", int(os.environ.get("PJRT_NPROC", 0)))
    for _ in sys.stdin:
        tell("seconds", [seconds(one, a1, a1), seconds(every, an, bn)])


def tell(what, value) -> None:
    print(json.dumps([what, value]), flush=True)


# ---------------------------------------------------------------------------------------- the watcher


@dataclasses.dataclass
class Attempt:
    """One loop: what was asked, and how it ended."""

    loop: str
    n: int
    pool: int
    steps: int
    wait_every: int
    seconds: float
    stalled: bool


def start(arguments: list, **variables) -> subprocess.Popen:
    """This file again, as a child, with the CPU alone and only these variables for its devices."""
    ours = ("PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES", "JAXPAR_DEVICES", "XLA_FLAGS")
    env = {k: v for k, v in os.environ.items() if k not in ours} | {"JAX_PLATFORMS": "cpu"} | variables
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if "training" in arguments else None,
        text=True,
        env=env,
    )


def attempt(n, loop, steps, patience, pool=None, wait_every=0) -> Attempt:
    """Runs a loop in a child and watches it."""
    child = start(["training", n, loop, steps, wait_every], **({"PJRT_NPROC": str(pool)} if pool else {}))
    messages: queue.Queue = queue.Queue()
    errors: list[str] = []

    def read():
        for line in child.stdout:
            messages.put(json.loads(line))
        messages.put(["end", None])

    readers = [threading.Thread(target=read), threading.Thread(target=lambda: errors.extend(child.stderr))]
    for reader in readers:
        reader.start()
    result = Attempt(loop, n, pool or 0, 0, wait_every, math.nan, stalled=True)
    began, wait = time.perf_counter(), 300.0  # until all is compiled
    try:
        while True:
            what, value = messages.get(timeout=wait)
            if what == "pool":
                result.pool, wait, began = value, patience, time.perf_counter()
            elif what == "steps":
                result.steps = value
            elif what == "seconds":
                result.steps, result.seconds, result.stalled = steps, value, False
            else:
                break
    except queue.Empty:
        pass
    child.kill()
    for reader in readers:
        reader.join()
    child.wait()
    if result.stalled:
        result.seconds = time.perf_counter() - began
        if child.returncode != -9 and "endezvous" not in "".join(errors):
            raise RuntimeError(f"the loop ended by itself:\n{''.join(errors[-20:])}")
    return result


# ----------------------------------------------------------------------------------------- the reports


def soak(options) -> list[dict]:
    rows = []
    for loop in options.loops:
        for n in options.n:
            result = attempt(n, loop, int(options.steps * TIMES.get(loop, 1)), options.patience)
            rows.append(dataclasses.asdict(result) | {"stalls": int(result.stalled)})
            say(
                options,
                f"{loop:8} n {n:2}  threads {result.pool:3}  steps {result.steps:7,}  "
                f"{result.seconds:7.1f} s  stalls {int(result.stalled)}",
            )
    return rows


POOLS = {
    "n": lambda n: n,
    "2n - 1": lambda n: 2 * n - 1,
    "2n": lambda n: 2 * n,
    "2n + 1": lambda n: 2 * n + 1,
    "16n": lambda n: 16 * n,
}
CASES = [
    ("train", 0, "n"),
    ("train", 0, "2n - 1"),
    ("train", 0, "2n"),
    ("callback", 0, "2n"),
    ("callback", 0, "2n + 1"),
    ("mixed", 0, "2n + 1"),
    ("train", 30, "n"),
    ("train", 60, "n"),
    ("threads", 0, "16n"),
    ("locked", 0, "2n + 1"),
]
"""What `bound` runs: a loop, after how many steps it waits for the result (0: never), a pool."""


def bound(options) -> list[dict]:
    rows = []
    for loop, wait_every, rule in CASES:
        for n in options.n:
            steps, pool = int(options.steps * TIMES.get(loop, 1)), POOLS[rule](n)
            results = [
                attempt(n, loop, steps, options.patience, pool, wait_every) for _ in range(options.repeat)
            ]
            stalls = sum(r.stalled for r in results)
            rows.append(
                {"loop": loop, "wait_every": wait_every, "n": n, "rule": rule, "pool": pool}
                | {"steps": steps, "runs": len(results), "stalls": stalls}
            )
            waits = f"waits every {wait_every}" if wait_every else "never waits"
            say(
                options,
                f"{loop:8} {waits:14}  n {n:2}  threads {rule:6} = {pool:3}  "
                f"steps {steps:6,}  stalls {stalls} of {len(results)}",
            )
    return rows


def matmul(options) -> list[dict]:
    """Alternating rounds in two waiting processes; the ratio is the median of the rounds' ratios."""
    rows = []
    for n in options.n:
        children = [
            start(["products", n, options.size], JAX_NUM_CPU_DEVICES=str(n)),
            start(["products", n, options.size]),
        ]
        pool = [json.loads(child.stdout.readline())[1] for child in children][1]
        rounds = []
        for i in range(options.rounds):
            times = {}
            for child in children if i % 2 else reversed(children):
                child.stdin.write("go\n")
                child.stdin.flush()
                times[child.pid] = json.loads(child.stdout.readline())[1]
            rounds.append([times[child.pid] for child in children])
        for child in children:
            child.stdin.close()
            child.wait()
        for i, where in enumerate(("one device", "every device")):
            default, ours = zip(*((d[i], o[i]) for d, o in rounds), strict=True)
            ratio = statistics.median(o / d for d, o in zip(default, ours, strict=True))
            rows.append(
                {
                    "n": n,
                    "where": where,
                    "pool": pool,
                    "default_ms": statistics.median(default) * 1e3,
                    "jaxpar_ms": statistics.median(ours) * 1e3,
                    "ratio": ratio,
                    "ratio_of_best": min(ours) / min(default),
                }
            )
            say(
                options,
                f"n {n:2}  {where:12} default {rows[-1]['default_ms']:8.1f} ms   {pool:3} threads "
                f"{rows[-1]['jaxpar_ms']:8.1f} ms   ratio {ratio:.3f}  (of the best: "
                f"{rows[-1]['ratio_of_best']:.3f})",
            )
    return rows


def say(options, text: str) -> None:
    if not options.json:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for f, steps in ((soak, 100_000), (bound, 6_000), (matmul, None)):
        command = commands.add_parser(f.__name__)
        command.set_defaults(run=f)
        command.add_argument("--n", type=int, nargs="+", default=[2, 4, 8, 16], help="device counts")
        command.add_argument("--json", action="store_true")
        if steps:
            command.add_argument("--steps", type=int, default=steps)
            command.add_argument("--patience", type=float, default=25, help="seconds without a step")
        if f is soak:
            command.add_argument("--loops", nargs="+", choices=LOOPS, default=["train", "mixed", "callback"])
        if f is bound:
            command.add_argument("--repeat", type=int, default=3)
        if f is matmul:
            command.add_argument("--size", type=int, default=2048)
            command.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    say(options, f"{os.cpu_count()} cores, jax {version()}")
    rows = options.run(options)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "jax": version(), "rows": rows}, indent=1))
    if any(row.get("stalls") for row in rows) and options.run is soak:
        sys.exit(1)


def version() -> str:
    from importlib import metadata

    return metadata.version("jax")


if sys.argv[1:2] == ["training"]:
    training(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
elif sys.argv[1:2] == ["products"]:
    products(int(sys.argv[2]), int(sys.argv[3]))
else:
    main()
