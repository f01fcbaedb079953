"""Do the tests see small mistakes? Each plant is put into a copy of the tree and run against its tests.

    python benchmarks/mutants/run.py [--only TEXT] [--jobs 2] [--resume] [--out docs/tables/mutants.md]
    python -m benchmarks.mutants.run --drawn 100 --seed 31 --resume --out docs/tables/mutants.md

--drawn takes mutants of drawn.py's list instead of those written by hand; covered.py maps tests to them.

Results are kept in .cache/mutants.jsonl as they come. --resume takes those whose plant, file and tests are
as they were, so Ctrl-C loses nothing but the run that it stops. At the end all tests that failed are run
without a plant, because one that fails anyway kills nothing. The exit status is 1 if a plant survives or does
not fit its file any more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.mutants import covered, drawn, page
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
    parser.add_argument("--drawn", type=int, default=0, help="draw so many mutants, instead of those by hand")
    parser.add_argument("--seed", type=int, default=0, help="of --drawn")
    parser.add_argument("--first", type=int, help="run only so many of the drawn ones")
    parser.add_argument("--seconds", type=float, default=300, help="that a plant may take")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell lets what it starts in the background ignore Ctrl-C.
        signal.signal(number, signal.default_int_handler)
    possible = drawn.frame() if chosen.drawn else []
    plants = drawn.draw(possible, chosen.drawn, chosen.seed, covered.read()) if chosen.drawn else PLANTS
    wanted = [p for p in plants[: chosen.first] if chosen.only in f"{p.file} {p.text} {p.tests}"]
    # Of the files as they are copied now: somebody may work on them while the tests run.
    keys = {p: p.key(ROOT) for p in wanted}
    kept = read() if chosen.resume else {}
    results = {p: kept[key] for p, key in keys.items() if key in kept}
    to_run = [p for p in wanted if p not in results and not p.equivalent]
    unchecked = any(result.kind == "killed" and not result.checked for result in results.values())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Tree(Path(folder) / str(i)) for i in range(chosen.jobs if to_run or unchecked else 0)]
        try:
            if trees:
                results |= run_all(trees, {p: keys[p] for p in to_run if p.tests}, chosen.seconds)
                if chosen.drawn:
                    again = {
                        drawn.in_whole_files(p): p
                        for p in to_run
                        if not p.tests or results[p].kind == "survived"
                    }
                    others = run_all(trees, {p: p.key(ROOT) for p in again}, chosen.seconds)
                    results |= {again[p]: result for p, result in others.items()}
                results = check_health(trees[0], results, keys, chosen.seconds)
        finally:
            for tree in trees:
                tree.close()
    earlier = chosen.out.read_text() if chosen.out and chosen.out.exists() else ""
    if chosen.drawn:
        section = page.drawn(wanted, results, len(possible), chosen.drawn, chosen.seed)
        said = earlier.partition(page.DRAWN)[0].rstrip() + "\n\n" + section
    else:
        by_seed = earlier.partition(page.DRAWN)
        said = page.write(wanted, results) + ("\n" + by_seed[1] + by_seed[2] if by_seed[1] else "")
    if chosen.out:
        chosen.out.write_text(said)
    else:
        print(said)
    print(f"{page.count(wanted, results)}; {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return int(any(result.kind not in GOOD for result in results.values()))


def check_health(
    tree: Tree, results: dict[Plant, Result], keys: dict[Plant, str], seconds: float
) -> dict[Plant, Result]:
    """The results, without the kills of tests that fail on the healthy tree too. All are run at once."""
    unsure = {p: result for p, result in results.items() if result.kind == "killed" and not result.checked}
    killers = sorted({result.by for result in unsure.values()})
    ill = tree.failing(killers, 20 * seconds) if killers else []
    checked = dict(results)
    for plant, result in unsure.items():
        ills = Result("broken", f"{result.by} fails without the plant")
        checked[plant] = ills if result.by in ill else dataclasses.replace(result, checked=True)
        keep(keys[plant], checked[plant])
    return checked


def run_all(trees: list[Tree], to_run: dict[Plant, str], seconds: float) -> dict[Plant, Result]:
    """The results of plants, which come with their keys."""
    idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        idle.put(tree)
    writing = threading.Lock()
    stopped = threading.Event()

    def one(plant: Plant) -> Result | None:
        if stopped.is_set():
            return None
        tree = idle.get()
        begun = time.monotonic()
        try:
            result = tree.run(plant, seconds)
        finally:
            idle.put(tree)
        with writing:
            keep(to_run[plant], result)
            took = f"{time.monotonic() - begun:5.1f} s"
            print(f"{result.kind:9} {took}  {plant.file}: {page.change(plant)}  {result.by}", file=sys.stderr)
        return result

    with ThreadPoolExecutor(len(trees)) as pool:
        try:
            found = list(pool.map(one, to_run))
        except BaseException:
            # The pool waits for its threads, and they for their tests, which may take minutes.
            stopped.set()
            for tree in trees:
                tree.close()
            raise
    return {plant: result for plant, result in zip(to_run, found, strict=True) if result is not None}


def read() -> dict[str, Result]:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    entries = {entry.pop("key"): entry for entry in map(json.loads, lines)}
    last = {key: Result(**entry) for key, entry in entries.items()}
    return {key: result for key, result in last.items() if result.kind in GOOD}


def keep(key: str, result: Result) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps({"key": key, **dataclasses.asdict(result)}) + "\n")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit("stopped; --resume goes on from here") from None
