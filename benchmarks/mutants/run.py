"""Do the tests see small mistakes? Each plant is put into a copy of the tree and run against its tests.

    python benchmarks/mutants/run.py [--only TEXT] [--jobs 2] [--resume] [--out docs/mutants.md]

Results are kept in .cache/mutants.jsonl as they come. --resume takes those whose plant, file and tests are
as they were, so Ctrl-C loses nothing. At the end all tests that failed are run without a plant, because one
that fails anyway kills nothing. The exit status is 1 if a plant survives or does not fit its file any more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.mutants import page
from benchmarks.mutants.plant import Plant
from benchmarks.mutants.plants import PLANTS
from benchmarks.mutants.tree import ROOT, Result, Tree

KEPT = ROOT / ".cache" / "mutants.jsonl"
GOOD = ("killed", "timed out")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="plants with this in file, text or tests")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree, one process in each")
    parser.add_argument("--resume", action="store_true", help="take the results that are kept")
    parser.add_argument("--seconds", type=float, default=300, help="that a plant may take")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    wanted = [p for p in PLANTS if chosen.only in f"{p.file} {p.text} {p.tests}"]
    kept = read() if chosen.resume else {}
    results = {p: kept[p.key(ROOT)] for p in wanted if p.key(ROOT) in kept}
    to_run = [p for p in wanted if p not in results and not p.equivalent]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = [Tree(Path(folder) / str(i)) for i in range(chosen.jobs if to_run else 0)]
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in made:
            trees.put(tree)
        try:
            results |= check_health(made[0], run_all(trees, to_run, chosen), chosen.seconds) if made else {}
        finally:
            for tree in made:
                tree.close()
    said = page.write(wanted, results)
    if chosen.out:
        chosen.out.write_text(said)
    else:
        print(said)
    print(f"{page.count(wanted, results)}; {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return int(any(result.kind not in GOOD for result in results.values()))


def check_health(tree: Tree, results: dict[Plant, Result], seconds: float) -> dict[Plant, Result]:
    """The results, without the kills of tests that fail on the healthy tree too. All are run at once."""
    killers = sorted({result.by for result in results.values() if result.kind == "killed"})
    ill = tree.failing(killers, 20 * seconds) if killers else []
    checked = dict(results)
    for plant, result in results.items():
        if result.kind == "killed" and result.by in ill:
            checked[plant] = Result("broken", f"{result.by} fails without the plant")
            keep(plant, checked[plant])
    return checked


def run_all(trees: queue.SimpleQueue, to_run: list[Plant], chosen: argparse.Namespace) -> dict[Plant, Result]:
    writing = threading.Lock()
    stopped = threading.Event()

    def one(plant: Plant) -> Result | None:
        if stopped.is_set():
            return None
        tree = trees.get()
        begun = time.monotonic()
        try:
            result = tree.run(plant, chosen.seconds)
        finally:
            trees.put(tree)
        with writing:
            keep(plant, result)
            took = f"{time.monotonic() - begun:5.1f} s"
            print(f"{result.kind:9} {took}  {plant.file}: {page.change(plant)}  {result.by}", file=sys.stderr)
        return result

    with ThreadPoolExecutor(chosen.jobs) as pool:
        try:
            found = list(pool.map(one, to_run))
        except KeyboardInterrupt:
            stopped.set()
            raise
    return {plant: result for plant, result in zip(to_run, found, strict=True) if result is not None}


def read() -> dict[str, Result]:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    last = {entry["key"]: Result(entry["kind"], entry["by"]) for entry in map(json.loads, lines)}
    return {key: result for key, result in last.items() if result.kind in GOOD}


def keep(plant: Plant, result: Result) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps({"key": plant.key(ROOT), **dataclasses.asdict(result)}) + "\n")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; --resume goes on from here") from None
