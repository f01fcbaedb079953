"""What survives of a checkpoint: kills in the middle, flipped bits, a full disk; and what saving costs.

    python benchmarks/checkpoints.py [--kills 200] [--flips 200] [--damaged 100] [--failures 50]
        [--megabytes 256] [--rounds 5] [--seed 0]

Kills: a process saves 14 leaves step after step and is killed with SIGKILL at a random moment. What is
then restored must be the last step that was complete before, or a later one, with every value right.
Flips: a random bit of a random file of a step; restoring must notice it and fall back on the step before.
Damaged: a random file of a step is cut, longer, empty, missing, or has other bytes from some place on.
Failures: a file of the newest step cannot be read while one restores and saves the next.
Stall: how long `save` keeps the training, as a part of the time until the step is on disk.
Full: a file system of 24 MB. Mounting it takes root; without, the files of the process are limited
(RLIMIT_FSIZE), and the line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import jaxpar
from jaxpar._checkpointer.json_values import flat_bytes
from jaxpar._checkpointer.step import digest as sha256
from jaxpar._checkpointer.store import Store
from jaxpar.errors import CheckpointError

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--kills", type=int, default=200)
parser.add_argument("--flips", type=int, default=200)
parser.add_argument("--damaged", type=int, default=100)
parser.add_argument("--failures", type=int, default=50)
parser.add_argument("--megabytes", type=int, default=256, help="of the state whose saving is timed")
parser.add_argument("--rounds", type=int, default=5, help="saves that are timed")
parser.add_argument("--seed", type=int, default=0)
LEAVES = 14


def state(step: int, megabytes: float = 8.0) -> dict[str, np.ndarray]:
    """Values that are a function of the step, so that anybody can tell whether they are right."""
    n = int(megabytes * 2**20 / 4 / LEAVES)
    one = np.arange(n, dtype=np.float32)
    return {f"leaf {i}": one * (i + 1) + step for i in range(LEAVES)}


def right(tree: dict[str, np.ndarray], step: int, megabytes: float = 8.0) -> int:
    want = state(step, megabytes)
    return sum(np.array_equal(tree[name], want[name]) for name in want)


# ------------------------------------------------------------------------------------------------- kills


def in_fork(work) -> tuple[int, int]:
    """Runs `work(pipe)` in a fork, before JAX's backend starts in this process: (pid, reading end)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            work(writing)
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writing)
    return pid, reading


def saves(folder: str):
    def work(pipe: int) -> None:
        checkpointer = jaxpar.Checkpointer(folder, max_to_keep=3)
        last = checkpointer.latest_step()
        step = 0 if last is None else last + 1
        while True:
            checkpointer.save(step, tree=state(step))  # waits for the step before
            os.write(pipe, step.to_bytes(4, "little"))
            step += 1

    return work


def restores(folder: str, at_least: int):
    def work(pipe: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # falling back is not enough here
            step, trees = jaxpar.Checkpointer(folder).restore(tree=state(0))
        assert step >= at_least, f"step {step} was restored, and {at_least} was complete"
        assert right(trees["tree"], step) == LEAVES
        os.write(pipe, step.to_bytes(4, "little"))

    return work


def kills(count: int, rng: random.Random, root: Path) -> str:
    good, partial, lost = 0, 0, []
    for i in range(count):
        folder = root / f"kill{i % 10}"
        pid, reading = in_fork(saves(str(folder)))
        steps = [int.from_bytes(os.read(reading, 4), "little") for _ in range(2)]
        time.sleep(rng.uniform(0, 0.4))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest = os.read(reading, 1 << 16)
        os.close(reading)
        if rest:
            steps.append(int.from_bytes(rest[-4:], "little"))
        partial += any("tmp" in path.name for path in folder.iterdir())
        # Step k is complete when save(k + 1) has begun to write, so when it returned.
        pid, reading = in_fork(restores(str(folder), steps[-1] - 1))
        answer = os.read(reading, 4)
        os.close(reading)
        good += os.waitpid(pid, 0)[1] == 0
        lost.append(steps[-1] - int.from_bytes(answer, "little"))
        if i % 10 == 9:
            for n in range(10):
                shutil.rmtree(root / f"kill{n}", ignore_errors=True)
    return (
        f"kill -9 while saving       {good} of {count} restored with all {LEAVES} leaves right; in {partial} "
        f"an unfinished step was left; steps lost: at most {max(lost, default=0)}"
    )


# ------------------------------------------------------------------------------------------------ damage


def flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    bit = rng.randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def harm(rng: random.Random, path: Path) -> None:
    data, kind = path.read_bytes(), rng.choice(("cut", "longer", "other bytes", "empty", "missing"))
    if kind == "missing":
        path.unlink()
        return
    somewhere = rng.randrange(len(data))
    made = {
        "cut": data[:somewhere],
        "longer": data + rng.randbytes(1 + somewhere),
        "other bytes": data[:somewhere] + rng.randbytes(len(data) - somewhere),
        "empty": b"",
    }
    path.write_bytes(made[kind])


def restored(folder: Path) -> tuple[int, bool, str]:
    """The step, whether all its values are right, and the first warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step, trees = jaxpar.Checkpointer(folder).restore(tree=state(0, 0.5))
    return step, right(trees["tree"], step, 0.5) == LEAVES, str(caught[0].message) if caught else ""


def damages(
    what: str, change: Callable[[random.Random, Path], None], count: int, rng: random.Random, root: Path
) -> str:
    folder = root / what.replace(" ", "-")
    with jaxpar.Checkpointer(folder) as checkpointer:
        for step in range(2):
            checkpointer.save(step, tree=state(step, 0.5))
    files = [path for path in sorted((folder / "1").rglob("*")) if path.is_file() and path.stat().st_size]
    good = noticed = unread = kept = 0
    for i in range(count):
        # Every second one by size, so that most are in the values; the others any file.
        weights = [path.stat().st_size for path in files] if i % 2 else None
        (path,) = rng.choices(files, weights)
        before = path.read_bytes()
        change(rng, path)
        step, values, message = restored(folder)
        seen = step == 0 and "step 1" in message
        noticed += seen
        unread += (step, message) == (1, "")
        good += values and (seen or (step, message) == (1, ""))
        path.write_bytes(before)
        kept += restored(folder) == (1, True, "")
    return (
        f"{what:26} {good} of {count} restored with right values: {noticed} noticed and the step before, "
        f"{unread} in notes of orbax that nobody reads; step kept {kept} of {count}"
    )


def failures(count: int, rng: random.Random, root: Path) -> str:
    """A disk that cannot be read for the time of a restore and a save, which removes old steps."""
    folder, read = root / "failures", np.fromfile
    good = kept = 0
    with jaxpar.Checkpointer(folder, max_to_keep=2) as checkpointer:
        for step in range(2):
            checkpointer.save(step, tree=state(step, 0.5))
        for newest in range(1, count + 1):
            checkpointer.wait()
            leaves = sorted((folder / str(newest) / "arrays").glob("*/0*"))
            bad = rng.choice([folder / str(newest) / "manifest", *leaves])

            def fail(path: Path, *args: Any, bad: Path = bad) -> np.ndarray:
                if Path(path) == bad:
                    raise OSError(errno.EIO, "Input/output error")
                return read(path, *args)

            np.fromfile = fail
            try:
                step, values, message = restored(folder)
                good += (step, values) == (newest - 1, True) and "Input/output error" in message
                checkpointer.save(newest + 1, tree=state(newest + 1, 0.5))
                checkpointer.wait()
            finally:
                np.fromfile = read
            _, trees = checkpointer.restore(newest, tree=state(0, 0.5))
            kept += right(trees["tree"], newest, 0.5) == LEAVES
    return (
        f"reads that fail for a time {good} of {count} named, and the step before restored; "
        f"step kept {kept} of {count}"
    )


# ------------------------------------------------------------------------------------------------- costs


def costs(megabytes: int, rounds: int, root: Path) -> list[str]:
    import jax

    tree = {name: jax.device_put(x) for name, x in state(0, megabytes).items()}
    jax.block_until_ready(tree)
    stalls, totals, digests, reads = [], [], [], []
    with jaxpar.Checkpointer(root / "costs", max_to_keep=1) as checkpointer:
        checkpointer.save(0, tree=tree)
        checkpointer.wait()
        for step in range(1, rounds + 1):
            start = time.perf_counter()
            checkpointer.save(step, tree=tree)
            stalls.append(time.perf_counter() - start)
            checkpointer.wait()
            totals.append(time.perf_counter() - start)
            start = time.perf_counter()
            for x in tree.values():
                sha256(flat_bytes(np.asarray(x)).data)
            digests.append(time.perf_counter() - start)
            start = time.perf_counter()
            checkpointer.restore(tree=tree)
            reads.append(time.perf_counter() - start)
    stall, total, digest, read = map(statistics.median, (stalls, totals, digests, reads))
    return [
        f"saving {megabytes:<3} MiB             {total:.2f} s, "
        f"of which training waits {1000 * stall:.1f} ms: {100 * stall / total:.2f} % (bar 5 %), at worst "
        f"{100 * max(s / t for s, t in zip(stalls, totals, strict=True)):.2f} %",
        f"digests of the leaves      {digest:.2f} s, {100 * digest / total:.0f} % of the time of saving",
        f"restoring, all checked     {read:.2f} s",
    ]


# -------------------------------------------------------------------------------------------------- full


@contextlib.contextmanager
def small_disk(root: Path):
    """A folder with room for 24 MB, and how that was done."""
    folder = root / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        try:
            yield folder, "tmpfs of 24 MB"
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, hard))
    try:
        yield folder, "no mount allowed here, files limited to 4 MB instead"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def full(root: Path) -> list[str]:
    rows, original = [], Store.disk_error
    with small_disk(root) as (folder, how):
        for what, check in (("asked for first", original), ("found on the way", lambda *_: None)):
            run = folder / what
            Store.disk_error = check
            try:
                rows.append(f"disk full, {what:16} ({how}) {_fill(run)}")
            finally:
                Store.disk_error = original
                shutil.rmtree(run)
    return rows


def _fill(run: Path) -> str:
    checkpointer = jaxpar.Checkpointer(run, max_to_keep=None, asynchronous=False)
    message, step = "", 0
    sizes = [1.0, 1.0, 1.0, 64.0]
    for step, megabytes in enumerate(sizes):
        try:
            checkpointer.save(step, tree=state(step, megabytes))
        except CheckpointError as error:
            message = str(error)
            break
    good = 0
    for earlier in range(step):
        _, trees = checkpointer.restore(earlier, tree=state(0, 1.0))
        good += right(trees["tree"], earlier, 1.0) == LEAVES
    assert "needs" in message or "File too large" in message, message
    assert not list(run.glob("*tmp*"))
    checkpointer.save(step + 1, tree=state(step + 1, 1.0))
    return f"step {step} refused; {good} of {step} earlier steps right; the next step saved"


def main() -> None:
    given = parser.parse_args()
    rng = random.Random(given.seed)
    root = Path(tempfile.mkdtemp(prefix="checkpoints"))
    try:
        print(
            kills(given.kills, rng, root), flush=True
        )  # first: it forks, and JAX's backend must not run yet
        print(damages("a flipped bit in a file", flip, given.flips, rng, root), flush=True)
        print(damages("a damaged file", harm, given.damaged, rng, root), flush=True)
        print(failures(given.failures, rng, root), flush=True)
        print(*costs(given.megabytes, given.rounds, root), sep="\n", flush=True)
        print(*full(root), sep="\n", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
