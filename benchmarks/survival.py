"""Does a job whose processes fail end with the bits of one left alone, and is the right rank blamed?

    python benchmarks/survival.py [--faults 60] [--n 2 4] [--seed 0] [--jobs 1] [--only SIGSTOP] [--json FILE]

Every trial trains a small network with BatchNorm, dropout, Adam and a data loader under `jaxpar launch`, with
a checkpoint every other step. One rank fails once, in one of twelve ways (those of NVIDIA's Resiliency
Extension that need no GPU) and one of five places; all of it is drawn from the seed. The digests of
parameters, statistics, optimizer state and random streams of all ranks are compared with those of a run
without a fault, and the first line of the launcher's report with the rank and the kind of the fault.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from survival_script import EVERY, KINDS, PLACES, STEPS, Fault, Orders  # noqa: E402

SCRIPT = str(HERE / "survival_script.py")
DISK = "16m"
"""The size of a trial's disk."""
LARGE = ("jit_program*", "jit_stage*", "jit_step*", "jit_update*")
"""Compiled programs that a fault in a compilation must not find."""
BLAMES = {
    "SIGKILL": r"rank {rank} failed first, .*: SIGKILL;",
    "SIGTERM": r"preempted at step \d+; restarting for free",
    "SIGINT": r"rank {rank} failed first, .*: exit code 130;",
    "SIGSTOP": r"rank {rank} was stopped by SIGSTOP for .* s",
    "SEGFAULT": r"rank {rank} failed first, .*: SIGSEGV;",
    "OS_ABORT": r"rank {rank} failed first, .*: SIGABRT;",
    "LOCK_GIL": r"rank {rank} (made no step for|has run no Python for) .* s",
    "exception": r"rank {rank} failed first, .*: exit code 1;",
    "async exception": r"rank {rank} failed first, .*: exit code 1;",
    "slow rank": r"(?!)",
    "full disk": r"rank 0 failed first, .*: exit code 1;",
    "lost folder": r"rank \d+ failed first, .*: exit code 1;",
}
"""What the launcher has to report first. Rank 0 is the one that writes to the disk. Of a lost folder the rank
that misses it is blamed, and its own error has to name it."""
MAY_GO_ON = ("slow rank", "full disk", "lost folder")
"""Kinds after which no rank needs to fail."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a trial; times are seconds, None where there was nothing to measure."""

    bits: bool
    """The job came to its end, and all ranks ended with the expected bits."""
    blame: bool
    """The first report names the right rank and kind; without a report, none was needed."""
    report: str
    noticed: float | None
    seconds: float

    @property
    def right(self) -> bool:
        return self.bits and self.blame


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all trials have in common."""

    timeout: float
    cache: Path
    """Compiled programs: without it every restart would compile them again."""
    keep: Path | None = None

    def environment(self, cache: Path) -> dict[str, str]:
        paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return os.environ | settings | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}


@dataclasses.dataclass(frozen=True)
class Reference:
    """Runs without a fault on n ranks: their digests, a checkpoint, and the sizes of the places."""

    finals: list[str]
    start: Path
    sizes: dict[int, dict[str, tuple[float, int]]]


def launch(bench: Bench, n: int, orders: Orders, cache: Path | None = None) -> tuple[int, float | None, str]:
    """One job: its exit code, when the supervisor spoke for the first time, and what it said."""
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", str(n), "--devices-per-process", "1"]
    line += ["--max-restarts", "1", "--step-timeout", str(bench.timeout), SCRIPT]
    text = json.dumps(dataclasses.asdict(orders))
    spoke, lines = None, []
    with subprocess.Popen(
        [*line, text],
        env=bench.environment(cache or bench.cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        # Without any limit in the first steps a fault there is noticed after ten times the limit.
        timer = threading.Timer(240 + 10 * bench.timeout, process.kill)
        timer.start()
        assert process.stderr is not None
        for row in process.stderr:
            lines.append(row)
            if spoke is None and row.startswith("jaxpar launch: "):
                spoke = time.time()
                # Somebody makes room, as after any report of a full disk.
                (Path(orders.folder) / "disk" / "ballast").unlink(missing_ok=True)
        timer.cancel()
    return process.returncode, spoke, "".join(lines)


def finals(folder: Path, n: int) -> list[str]:
    return [file.read_text() if (file := folder / f"final-{r}").exists() else "none" for r in range(n)]


class SmallDisk:
    """A file system of a few megabytes, where this process may mount one; a plain folder elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "jaxpar-survival", str(folder)]
        self.mounted = (
            shutil.which("mount") is not None
            and not subprocess.run(mount, capture_output=True, check=False).returncode
        )

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *error: object) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


def reference(bench: Bench, n: int, folder: Path) -> Reference:
    """Train a few steps, then the remainder from the checkpoint, then all in one: with the same bits."""
    if (folder / "reference.json").exists():
        ends, sizes = json.loads((folder / "reference.json").read_text())
        return Reference(ends, folder / "beginning" / "disk", {int(rank): x for rank, x in sizes.items()})
    ends = []
    for name, steps in (("beginning", 2 * EVERY + 1), ("resumed", STEPS), ("undisturbed", STEPS)):
        run = folder / name
        run.mkdir(parents=True)
        if name == "resumed":
            shutil.copytree(folder / "beginning" / "disk", run / "disk")
        code, _, text = launch(bench, n, Orders(str(run), steps, measure=True))
        if code:
            raise SystemExit(f"the run without a fault failed:\n{text}")
        ends.append(finals(run, n))
    if ends[1] != ends[2]:
        raise SystemExit("a run that resumes has other bits than one that does not")
    sizes = {
        rank: json.loads((folder / "undisturbed" / f"sizes-{rank}").read_text())
        | {"restore": json.loads((folder / "resumed" / f"sizes-{rank}").read_text())["restore"]}
        for rank in range(n)
    }
    (folder / "reference.json").write_text(json.dumps([ends[1], sizes]))
    return Reference(ends[1], folder / "beginning" / "disk", sizes)


def trial(bench: Bench, fault: Fault, expected: Reference) -> Result:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, SmallDisk(Path(name) / "disk") as disk:
        folder = Path(name)
        if fault.kind == "full disk" and not disk.mounted:
            raise SystemExit("a full disk needs the right to mount a small one: run as root")
        if fault.place == "restore":
            shutil.copytree(expected.start, folder / "disk", dirs_exist_ok=True)
        orders = Orders(name, faults=(dataclasses.asdict(fault),), sizes=expected.sizes.get(fault.rank, {}))
        cache = None
        if fault.place == "compile":
            cache = folder / "cache"
            shutil.copytree(bench.cache, cache, ignore=shutil.ignore_patterns(*LARGE))
        code, spoke, text = launch(bench, fault.n, orders, cache)
        reports = re.findall(r"^jaxpar launch: (.*)", text, re.M)
        struck = (folder / "struck").exists()
        bits = struck and code == 0 and finals(folder, fault.n) == expected.finals
        blame = right_blame(fault, reports, text)
        noticed = spoke - float((folder / "struck").read_text()) if spoke and struck else None
    result = Result(bits, blame, reports[0] if reports else "", noticed, time.monotonic() - began)
    if bench.keep and not result.right:
        bench.keep.mkdir(parents=True, exist_ok=True)
        file = "-".join(map(str, dataclasses.astuple(fault))).replace(" ", "_")
        (bench.keep / f"{file}.log").write_text(f"{fault}\n{result}\nexit code {code}\n{text}")
    return result


def right_blame(fault: Fault, reports: list[str], text: str) -> bool:
    if not reports:
        return fault.kind in MAY_GO_ON
    found = re.match(BLAMES[fault.kind].format(rank=fault.rank), reports[0])
    if found and fault.kind == "lost folder":
        blamed = re.match(r"rank (\d+)", reports[0])
        assert blamed is not None
        return re.search(rf"^\[{blamed[1]}\] \[rank {blamed[1]}\].*checkpoints", text, re.M) is not None
    return found is not None


def faults(count: int, sizes: list[int], seed: int, kinds: Iterable[str] = KINDS) -> list[Fault]:
    """Every kind about as often, everything else drawn."""
    draw = random.Random(seed)
    found = []
    kinds = list(kinds)
    for i in range(count):
        n, place = draw.choice(sizes), draw.choice(PLACES)
        # Steps that are saved, early enough for a SIGTERM to be followed.
        step = draw.randrange(EVERY, STEPS // 2, EVERY)
        found.append(Fault(n, draw.randrange(n), kinds[i % len(kinds)], place, step, round(draw.random(), 4)))
    return found


def table(results: list[tuple[Fault, Result]], head: str) -> str:
    """Markdown: a row for each kind, and the sums."""
    lines = [head, "", "| fault | trials | in | right bits | right blame | noticed, s | trial, s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        rows = [(fault, result) for fault, result in results if fault.kind == kind]
        if not rows:
            continue
        places = ", ".join(place for place in PLACES if any(fault.place == place for fault, _ in rows))
        cells = [kind, len(rows), places, sum(r.bits for _, r in rows), sum(r.blame for _, r in rows)]
        cells += [middle(r.noticed for _, r in rows), middle(r.seconds for _, r in rows)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    right = sum(result.right for _, result in results)
    return "\n".join(
        [*lines, "", f"{right} of {len(results)} ended with the right bits and the right blame."]
    )


def middle(values: Iterable[float | None]) -> str:
    """Median and largest."""
    measured = [value for value in values if value is not None]
    return f"{statistics.median(measured):.1f} (at most {max(measured):.1f})" if measured else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="leave out the faults before this one")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="kinds or places")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--step-timeout", type=float, default=20, metavar="S")
    parser.add_argument("--references", type=Path, metavar="DIR", help="keep the runs without a fault here")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="add the trials to this file, print all of it"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of trials that went wrong")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.references or Path(name)
        return run(arguments, Bench(arguments.step_timeout, folder / "cache", arguments.keep), folder)


def run(arguments: argparse.Namespace, bench: Bench, folder: Path) -> int:
    plan = faults(arguments.faults, arguments.n, arguments.seed)[arguments.first :]
    plan = [fault for fault in plan if not arguments.only or {fault.kind, fault.place} & {*arguments.only}]
    expected = {n: reference(bench, n, folder / str(n)) for n in sorted({fault.n for fault in plan})}

    def attempt(fault: Fault) -> tuple[Fault, Result]:
        result = trial(bench, fault, expected[fault.n])
        print(f"{fault}\n  {result}", file=sys.stderr, flush=True)
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps([dataclasses.asdict(fault), dataclasses.asdict(result)]) + "\n")
        return fault, result

    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(attempt, plan))
    if arguments.json:  # with the trials of earlier calls
        rows = map(json.loads, arguments.json.read_text().splitlines())
        results = [(Fault(**fault), Result(**result)) for fault, result in rows]
    print(table(results, f"Seed {arguments.seed}, --step-timeout {arguments.step_timeout:g}."))
    return 0 if all(result.right for _, result in results) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that disks are unmounted
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell ignores in the background
    sys.exit(main())
