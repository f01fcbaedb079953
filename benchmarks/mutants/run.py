"""Do the tests see small mistakes? Each plant is put into a copy of the tree and run against its tests.

    python benchmarks/mutants/run.py [--only TEXT] [--jobs 2] [--resume] [--trust] [--out docs/mutants.md]

Results are kept in .cache/mutants.jsonl as they come. --resume takes those whose plant, file and tests are
as they were, so Ctrl-C loses nothing. First the tests of all plants are run without any, because a test that
fails anyway kills nothing. The exit status is 1 if a plant survives or does not fit its file any more.
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
from collections.abc import Iterable
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
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a plant first")
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
            ill = {} if chosen.trust else check_health(trees, to_run, chosen)
            results |= run_all(trees, to_run, ill, chosen)
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


def check_health(
    trees: queue.SimpleQueue, to_run: Iterable[Plant], chosen: argparse.Namespace
) -> dict[str, str]:
    """Tests that do not pass on the healthy tree, by a plant's `tests`, with what is wrong with them."""
    found = {}
    for tests in dict.fromkeys(p.tests for p in to_run):
        tree = trees.get()
        result = tree.test(Plant("", "", "", tests).arguments(), chosen.seconds)
        trees.put(tree)
        if result.kind != "survived":
            found[tests] = f"without the plant: {result.kind} {result.by}"
            print(f"{tests}: {found[tests]}", file=sys.stderr)
    return found


def run_all(
    trees: queue.SimpleQueue, to_run: list[Plant], ill: dict[str, str], chosen: argparse.Namespace
) -> dict[Plant, Result]:
    writing = threading.Lock()
    stopped = threading.Event()

    def one(plant: Plant) -> Result | None:
        if stopped.is_set():
            return None
        if plant.tests in ill:
            return Result("broken", ill[plant.tests])
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
    entries = map(json.loads, lines)
    return {entry["key"]: Result(entry["kind"], entry["by"]) for entry in entries if entry["kind"] in GOOD}


def keep(plant: Plant, result: Result) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps({"key": plant.key(ROOT), **dataclasses.asdict(result)}) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
