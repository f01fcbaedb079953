"""Does a job whose processes die, raise, hang or are asked to leave end with the bits of one left alone?

    python benchmarks/survival.py [--failures 50] [--n 2 4] [--seed 0] [--json]

Every trial trains a small network with BatchNorm, dropout and Adam under `jaxpar launch`, with a
checkpoint every other step, lets one rank fail in one step, and compares parameters, statistics,
optimizer state and random streams of all ranks with those of a run without a failure, by their digest.
Rank, step, kind and moment within the step are drawn from the seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

KINDS = ("SIGKILL", "exception", "hang", "SIGTERM")
STEPS, EVERY, PAUSE = 40, 2, 0.1
"""Seconds between two steps, as if data were loaded: a SIGTERM takes one or two to reach all ranks."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """One rank fails in one step, some seconds after it began. `kind` is one of KINDS."""

    n: int
    rank: int
    step: int
    kind: str
    delay: float
    attempt: int = 0


# ------------------------------------------------------------------------------------ in every process


def train(folder: Path, failures: list[Failure]) -> None:
    """The training script, as a user would write it, but for the line that lets it fail."""
    import jax
    import numpy as np
    import optax
    from flax import nnx

    import jaxpar
    from jaxpar import distributed

    distributed.init_process_group()
    rank, attempt = distributed.get_rank(), int(os.environ.get("JAXPAR_RESTART_COUNT", "0"))

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

    rngs = nnx.Rngs(0)
    net = jaxpar.DistributedDataParallel(Net(rngs))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    checkpointer = jaxpar.Checkpointer(folder / "checkpoints", save_every=EVERY)
    start = 0
    if checkpointer.latest_step() is not None:
        start = checkpointer.restore(net=net, optimizer=optimizer).step + 1
    for step in range(start, STEPS):
        for failure in failures:
            if (attempt, rank, step) == (failure.attempt, failure.rank, failure.step):
                fail(failure, folder)
        data = np.random.RandomState(1000 * step + rank)
        x, y = data.randn(8, 8).astype(np.float32), data.randint(0, 4, 8)
        loss, gradients = net.value_and_grad(loss_fn)(x, y)
        update(optimizer, net, gradients)
        jaxpar.beat(step)
        time.sleep(PAUSE)
        if step == start:
            jax.block_until_ready(loss)
            write(folder / f"first-{attempt}-{rank}", f"{start} {time.time()}")
        checkpointer.save(step, net=net, optimizer=optimizer)
    checkpointer.close()
    write(folder / f"final-{rank}", digest((nnx.state(net), nnx.state(optimizer))))


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


def fail(failure: Failure, folder: Path) -> None:
    """Signals come from a thread, so that they find the step anywhere."""

    def send() -> None:
        time.sleep(failure.delay)
        write(folder / "failed", str(time.time()))
        os.kill(os.getpid(), getattr(signal, failure.kind))

    if failure.kind.startswith("SIG"):
        threading.Thread(target=send, daemon=True).start()
        return
    write(folder / "failed", str(time.time()))
    if failure.kind == "exception":
        raise RuntimeError("a failure on purpose")
    time.sleep(3600)


# ------------------------------------------------------------------------------------------- outside


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a trial; times are seconds, None where there was nothing to measure."""

    same: bool
    """The job was restarted, came to its end, and all ranks ended with the expected bits."""
    code: int
    noticed: float | None
    resumed: float | None
    lost: int | None


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all trials have in common."""

    timeout: float
    cache: Path
    """Compiled programs: without it every restart would compile them again."""
    keep: Path | None = None

    def environment(self) -> dict[str, str]:
        here = str(Path(__file__).resolve().parents[1])
        paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return os.environ | cache | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}


def launch(bench: Bench, n: int, folder: Path, *failures: Failure) -> tuple[int, float | None, str]:
    """One job: its exit code, when the supervisor spoke for the first time, and what it said."""
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", str(n), "--devices-per-process", "1"]
    line += ["--max-restarts", "1", "--step-timeout", str(bench.timeout), __file__, "--train", str(folder)]
    text = json.dumps([dataclasses.asdict(failure) for failure in failures])
    spoke, said = None, []
    with subprocess.Popen(
        [*line, text], env=bench.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        # A hang in the first three steps is noticed after ten times the limit.
        timer = threading.Timer(300 + 10 * bench.timeout, process.kill)
        timer.start()
        assert process.stderr is not None
        for row in process.stderr:
            said.append(row)
            if spoke is None and row.startswith("jaxpar launch: "):
                spoke = time.time()
        timer.cancel()
    return process.returncode, spoke, "".join(said)


def finals(folder: Path, n: int) -> list[str]:
    return [file.read_text() if (file := folder / f"final-{r}").exists() else "none" for r in range(n)]


def trial(bench: Bench, failure: Failure, expected: list[str]) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, spoke, said = launch(bench, failure.n, folder, failure)
        restarted = len(list(folder.glob("first-1-*"))) == failure.n
        same = code == 0 and restarted and finals(folder, failure.n) == expected
        if bench.keep and not same:
            bench.keep.mkdir(parents=True, exist_ok=True)
            (bench.keep / f"{failure.n}-{failure.rank}-{failure.step}-{failure.kind}.log").write_text(said)
        failed = folder / "failed"
        if spoke is None or not failed.exists():
            return Result(same, code, None, None, None)
        began = float(failed.read_text())
        again = [file.read_text().split() for file in folder.glob("first-1-*")]
        resumed = max((float(at) for _, at in again), default=None)
        # The step of a SIGTERM is chosen by the ranks together: what they had not saved is nothing.
        lost = max(0, failure.step - int(again[0][0])) if again else None
        return Result(same, code, spoke - began, resumed and resumed - spoke, lost)


def failures(count: int, sizes: list[int], seed: int) -> list[Failure]:
    """Every kind and number of processes about as often; everything else at random."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        n = sizes[i // len(KINDS) % len(sizes)]
        place = draw.randrange(n), draw.randrange(1, STEPS // 2)
        found.append(Failure(n, *place, KINDS[i % len(KINDS)], round(draw.uniform(0, 0.2), 4)))
    return found


def table(results: list[tuple[Failure, Result]]) -> str:
    """Markdown: a row for each number of processes and kind."""
    rows = ["| processes | failure | trials | same bits | noticed, s | first step again, s | lost steps |"]
    rows.append("|---|---|---|---|---|---|---|")
    for n, kind in sorted({(f.n, f.kind) for f, _ in results}):
        mine = [result for failure, result in results if (failure.n, failure.kind) == (n, kind)]
        cells = [n, kind, len(mine), sum(r.same for r in mine), middle(r.noticed for r in mine)]
        cells += [middle(r.resumed for r in mine), max((r.lost or 0) for r in mine)]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    same = sum(result.same for _, result in results)
    return "\n".join([*rows, "", f"{same} of {len(results)} ended with the same bits."])


def middle(values: object) -> str:
    """Median and largest."""
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):.2f} (at most {max(found):.2f})" if found else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--failures", type=int, default=50)
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-timeout", type=float, default=6, metavar="S")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of trials that went wrong")
    parser.add_argument("--train", nargs=2, metavar=("FOLDER", "FAILURE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(Path(arguments.train[0]), [Failure(**each) for each in json.loads(arguments.train[1])])
        return 0
    with tempfile.TemporaryDirectory() as cache:
        return run(arguments, Bench(arguments.step_timeout, Path(cache), arguments.keep))


def run(arguments: argparse.Namespace, bench: Bench) -> int:
    plan = failures(arguments.failures, arguments.n, arguments.seed)
    expected = {}
    for n in sorted({failure.n for failure in plan}):
        with tempfile.TemporaryDirectory() as name:
            code, _, said = launch(bench, n, Path(name))
            expected[n] = finals(Path(name), n)
        if code:
            print(said, file=sys.stderr)
            return 1
    results = []
    for failure in plan:
        result = trial(bench, failure, expected[failure.n])
        results.append((failure, result))
        if not arguments.json:
            print(f"{failure}\n  {result}", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(f) | dataclasses.asdict(r) for f, r in results], indent=2))
    else:
        print(table(results))
    return 0 if all(result.same for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
