"""Run drawn trainings with planted mistakes, healthy ones, and examples through `jaxpar invariance`.

    python benchmarks/invariance/run.py --plants 24 --healthy 6 --seed 34 --out docs/tables/invariance.md

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
import time
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


def page(plants: int, healthy: int, seed: int, examples: int, shown: bool) -> str:
    begun = time.perf_counter()
    named = right = same = 0
    missed, false, rows, counts = [], [], [], dict.fromkeys((p.name for p in PLANTS), (0, 0, 0))
    for case in drawn(seed, plants):
        with tempfile.TemporaryDirectory() as folder:
            is_named, is_right, text = planted(case, Path(folder))
        named, right = named + is_named, right + is_right
        count = counts[case.plant.name]
        counts[case.plant.name] = count[0] + 1, count[1] + is_named, count[2] + is_right
        missed += [] if is_named and is_right else [f"* {text}"]
        if shown:
            print("" if is_named and is_right else "MISSED", text, flush=True)
    random = Random(seed + 1)
    for _ in range(healthy):
        number = str(random.randrange(10**6))
        plant = random.choice(["", "healthy statistics", "unequal batches"])
        # Rows that devices do not divide are filled up, which a BatchNorm would count; its script has none.
        accumulate = "1" if "statistics" in plant else "1,2"
        arguments = ["--worlds", "1x1,1x4,2x1", "--accumulate", accumulate, "--steps", "14", SCRIPT, "--"]
        plant_of = [*(["--plant", plant] if plant else []), "--healthy"]
        result = invariance([*arguments, "--seed", number, *plant_of])
        same += result["exit_code"] == 0
        if result["exit_code"]:
            false.append(
                f"* seed {number} {plant}: {[p['causes'] for p in result['pairs'] if not p['same']]}"
            )
        if shown:
            print("FALSE" if result["exit_code"] else "", f"healthy, seed {number}", false[-1:], flush=True)
    passed = 0
    for example in EXAMPLES[:examples]:
        ok, verdict, distance = judged(example)
        passed += ok
        cells = [example.name, " ".join(example.options), verdict, distance, "yes" if ok else "no"]
        rows.append(f"| {' | '.join(cells)} |")
        if shown:
            print(rows[-1], flush=True)
    command = f"python benchmarks/invariance/run.py --plants {plants} --healthy {healthy} --seed {seed}"
    return "\n".join([
        "# Trainings in several worlds",
        "",
        f"Printed by `{command}` in",
        f"{(time.perf_counter() - begun) / 60:.0f} minutes on two shared cores.",
        "The frame: a training in plain JAX and Linen (regression, letters with ends, BatchNorm) with drawn",
        f"sizes, optimizer, clipping, dropout and last batch, 14 updates, with one mistake of {len(PLANTS)};",
        "healthy ones in the worlds 1x1, 1x4 and 2x1, with one and two accumulated batches. Developed on",
        "seeds 1 and 2.",
        "",
        "| | asked | passed |",
        "| --- | --- | --- |",
        f"| mistakes that are named | {plants} | {named} |",
        f"| whose first step is right | {plants} | {right} |",
        f"| healthy trainings that are the same in all worlds | {healthy} | {same} |",
        f"| examples whose verdict is the expected one | {len(rows)} | {passed} |",
        "",
        *(["Not named, or another step:", "", *missed, ""] if missed else []),
        *(["Healthy, and called different:", "", *false, ""] if false else []),
        "| mistake | drawn | named | right step |",
        "| --- | --- | --- | --- |",
        *(f"| {name} | {a} | {b} | {c} |" for name, (a, b, c) in counts.items()),
        "",
        "| example | worlds | verdict | largest difference of those that agree | as expected |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]) + "\n"  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", type=int, default=24)
    parser.add_argument("--healthy", type=int, default=6)
    parser.add_argument("--examples", type=int, default=len(EXAMPLES))
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    text = page(options.plants, options.healthy, options.seed, options.examples, options.verbose)
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
