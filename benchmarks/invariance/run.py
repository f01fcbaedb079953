"""Run drawn trainings with planted mistakes, healthy ones, and examples through `jaxpar invariance`.

    python benchmarks/invariance/run.py --plants 16 --healthy 4 --examples 18 --seed 35

The right step is the first one in which the world with the mistake differs from the same world without it, by
more than 1e-9 of an element.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.invariance.examples import EXAMPLES, Example
from benchmarks.invariance.planted import PLANTS, Case, drawn
from jaxpar.parity._runs.run import read_run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "benchmarks/invariance/script.py")
NEAR = 1e-9


def invariance(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the document of a run of the command."""
    command = [sys.executable, "-m", "jaxpar", "invariance", "--json", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if not run.stdout.startswith("{"):
        raise RuntimeError(f"{command}: {run.stderr}")
    return json.loads(run.stdout)


def first_step(folder: Path, healthy: Path) -> int | None:
    """Return the first step in which the last worlds of two runs differ; rows are compared as sets."""
    runs = [read_run(max(path.glob("*/tap*"), key=lambda p: p.stat().st_mtime)) for path in (folder, healthy)]
    for k in sorted(runs[0].steps.keys() | runs[1].steps.keys()):
        steps = [run.steps.get(k) for run in runs]
        if None in steps:
            return k
        a, b = steps
        rows = [np.sort(next(iter(s.batch.values())).digests[0]) for s in (a, b)]
        numbers = [
            np.concatenate([[s.loss], *(t.values[:, 5:].ravel() for t in s.parts.values())]) for s in (a, b)
        ]
        if not np.array_equal(*rows) or not np.allclose(*numbers, rtol=NEAR, atol=1e-13):
            return k
    return None


def planted(case: Case, folder: Path) -> tuple[bool, bool, str]:
    """Return whether the mistake is named, whether its step is right, and a line."""
    script = [SCRIPT, "--", "--seed", str(case.seed), "--plant", case.plant.name]
    worlds = ["--worlds", case.worlds, "--accumulate", case.accumulate, "--steps", "14"]
    last = [
        "--worlds",
        case.worlds.split(",")[-1],
        "--accumulate",
        case.accumulate.split(",")[-1],
        "--steps",
        "14",
    ]
    result = invariance([*worlds, "--taps", str(folder / "planted"), *script])
    invariance([*last, "--taps", str(folder / "healthy"), *script, "--healthy"])
    pair = result["pairs"][-1] if result["pairs"] else {"causes": [], "step": None, "part": None}
    right = first_step(folder / "planted", folder / "healthy")
    named = any(re.search(case.plant.named, text) for text in pair["causes"])
    text = (
        f"{case.plant.name} (seed {case.seed}, {case.worlds}, {case.accumulate}): step {pair['step']}, "
        f"{right} is right; {pair['part']}: {'; or '.join(pair['causes']) or result['errors']}"
    )
    return named, pair["step"] == right, text


def judged(example: Example) -> tuple[bool, str, str]:
    """Return whether an example's verdict is the expected one, the verdict, and the largest difference."""
    result = invariance([*example.options, str(ROOT / example.script), *example.arguments])
    pairs = [pair for pair in result["pairs"] if not pair["same"]]
    distance = max((float(pair["distance"]) for pair in result["pairs"] if pair["same"]), default=0.0)
    if result["errors"]:
        return False, f"no verdict: {result['errors'][0][:300]}", ""
    causes = sorted({cause for pair in pairs for cause in pair["causes"]})
    if not example.named:
        return (
            not pairs and distance <= 1e-12,
            "the same" if not pairs else "; ".join(causes),
            f"{distance:.1e}",
        )
    named = all(any(re.search(example.named, cause) for cause in pair["causes"]) for pair in pairs)
    apart = ", ".join(f"{p['world']} from step {p['step']}" for p in pairs)
    return bool(pairs) and named, f"{apart}: {'; '.join(causes)}", f"{distance:.1e}" if distance else ""


def plants_page(plants: int, seed: int) -> list[str]:
    missed, counts = [], dict.fromkeys((plant.name for plant in PLANTS), np.zeros(3, int))
    for case in drawn(seed, plants):
        with tempfile.TemporaryDirectory() as folder:
            named, right, text = planted(case, Path(folder))
        counts[case.plant.name] = counts[case.plant.name] + [1, named, right]
        missed += [] if named and right else [f"* {text}"]
        print("" if named and right else "MISSED", text, file=sys.stderr, flush=True)
    asked, named, right = sum(counts.values())
    return [
        "A training in plain JAX and Linen (regression, letters with ends, BatchNorm) with drawn sizes,",
        f"optimizer, clipping, dropout and last batch, 14 updates, with one mistake of {len(PLANTS)}.",
        "Developed on seeds 1, 2 and 34.",
        "",
        "| | asked | passed |",
        "| --- | --- | --- |",
        f"| mistakes that are named | {asked} | {named} |",
        f"| whose first step is right | {asked} | {right} |",
        "",
        *(["Not named, or another step:", "", *missed, ""] if missed else []),
        "| mistake | drawn | named | right step |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {' | '.join(map(str, count))} |" for name, count in counts.items() if count[0]),
    ]


def healthy_page(healthy: int, seed: int) -> list[str]:
    random, false, largest = Random(seed + 1), [], 0.0
    for _ in range(healthy):
        number = str(random.randrange(10**6))
        plant = random.choice(["", "healthy statistics", "unequal batches"])
        # BatchNorm is a layer of whole batches, and accumulated ones are none.
        accumulate = "1" if "statistics" in plant else "1,2"
        worlds = ["--worlds", "1x1,1x4,2x1", "--accumulate", accumulate, "--steps", "14"]
        result = invariance([*worlds, SCRIPT, "--", "--seed", number, "--plant", plant, "--healthy"])
        largest = max([largest, *(float(pair["distance"]) for pair in result["pairs"] if pair["same"])])
        if result["exit_code"]:
            different = [pair["causes"] for pair in result["pairs"] if not pair["same"]]
            false.append(f"* seed {number} {plant}: {different or result['errors']}")
        print(f"healthy, seed {number} {plant}: {result['exit_code']}", file=sys.stderr, flush=True)
    return [
        "The same trainings without a mistake, worlds 1x1, 1x4 and 2x1, with 1 and 2 batches for each.",
        "",
        "| | asked | passed |",
        "| --- | --- | --- |",
        f"| healthy trainings that are the same in all worlds | {healthy} | {healthy - len(false)} |",
        "",
        f"The largest relative difference of those is {largest:.1e}.",
        *(["", "Called different:", "", *false] if false else []),
    ]


def examples_page(count: int) -> list[str]:
    rows, passed = [], 0
    for example in EXAMPLES[:count]:
        right, verdict, distance = judged(example)
        passed += right
        cells = [example.name, " ".join(example.options), verdict, distance, "yes" if right else "no"]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr, flush=True)
    return [
        "| | asked | passed |",
        "| --- | --- | --- |",
        f"| examples that are the same to 1e-12, or different as expected | {len(rows)} | {passed} |",
        "",
        "| example | options | verdict | largest difference of those that agree | as expected |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", type=int, default=0, help="trainings with a mistake")
    parser.add_argument("--healthy", type=int, default=0, help="trainings without")
    parser.add_argument("--examples", type=int, default=0, help="of the project's examples")
    parser.add_argument("--seed", type=int, default=35)
    options = parser.parse_args(arguments)
    pages = {
        f"--plants {options.plants} --seed {options.seed}": lambda: plants_page(options.plants, options.seed),
        f"--healthy {options.healthy} --seed {options.seed}": lambda: healthy_page(
            options.healthy, options.seed
        ),
        f"--examples {options.examples}": lambda: examples_page(options.examples),
    }
    for words, page in pages.items():
        if words.split()[1] != "0":
            print(
                f"## `python benchmarks/invariance/run.py {words}`\n",
                *page(),
                sep="\n",
                end="\n\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
