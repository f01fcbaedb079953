"""Tap drawn trainings with a drawn difference, and print which differences jaxpar bisect names, and where.

    python benchmarks/runs/run.py --pairs 60 --healthy 20 --seed 34 --out docs/tables/bisect.md

The right step is the first one in which run B with the difference is not run B without it, to the last bit.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.runs import jax_side, torch_side
from benchmarks.runs.planted import PLANTS, drawn, healthy
from benchmarks.runs.training import Training
from jaxpar import parity
from jaxpar.parity._runs.run import TappedStep, read_run

SEEDS = range(5)


def tapped(training: Training, folder: Path) -> Path:
    """Run a training and return the folder of its taps; equal trainings run once."""
    path = folder / f"{abs(hash(repr(training))):x}"
    if not path.exists():
        side = torch_side if training.framework == "torch" else jax_side
        with jax.enable_x64(training.dtype == "float64"):
            side.run(training, path)
    return path


def first_step(one: Path, other: Path) -> int:
    """Return the first step in which two runs of one framework are not equal to the last bit."""
    a, b = read_run(one), read_run(other)
    return next(
        (k for k in sorted(a.steps.keys() & b.steps.keys()) if _bits(a.steps[k]) != _bits(b.steps[k])), -1
    )


def _bits(step: TappedStep) -> list[bytes]:
    tables = [table.values.tobytes() for name in sorted(step.parts) for table in step.ranks[name]]
    rows = [np.sort(leaf.digests[0]).tobytes() for leaf in step.batch.values()]
    return [*tables, *rows, repr(step.numbers).encode()]


def page(pairs: int, healthy_pairs: int, seed: int, shown: bool = False) -> str:
    rows, missed, wrong, seconds = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for a, plant, faulty, b in drawn(seed, pairs):
            paths = [tapped(training, folder) for training in (a, faulty, b)]
            begun = time.perf_counter()
            result = parity.bisect(paths[0], paths[1])
            seconds.append(time.perf_counter() - begun)
            first = first_step(paths[1], paths[2])
            right = result.step == first
            named = any(re.search(plant.named, text) for text in [*result.causes, *result.notes])
            rows.append((plant.name, named, right, _frame(a, b), not result.same))
            text = (
                f"* {plant.name} ({_frame(a, b)}): step {result.step}, {first} is right; {result.part}: "
                f"{'; or '.join(result.causes) or 'nothing named'}"
            )
            if not named or not right:
                missed.append(text)
            if shown:
                print("" if named and right else "MISSED", text, a, "\n", flush=True)
        for a, b in healthy(seed, healthy_pairs):
            for k in SEEDS:
                one, other = (replace(training, seed=training.seed + k) for training in (a, b))
                result = parity.bisect(tapped(one, folder), tapped(other, folder))
                if not result.same:
                    wrong.append(f"* {_frame(a, b)}, {a.model}, {a.optimizer}, seed {k}: {result.headline()}")
                    if shown:
                        print("FALSE", wrong[-1], a, result, flush=True)
    return _table(pairs, healthy_pairs, seed, rows, missed, wrong, seconds)


def _frame(a: Training, b: Training) -> str:
    return f"{a.framework} and {b.framework}, {a.dtype}"


def _table(
    pairs: int,
    healthy_pairs: int,
    seed: int,
    rows: Sequence[tuple[str, bool, bool, str, bool]],
    missed: Sequence[str],
    wrong: Sequence[str],
    seconds: Sequence[float],
) -> str:
    count = healthy_pairs * len(SEEDS)
    command = f"python benchmarks/runs/run.py --pairs {pairs} --healthy {healthy_pairs} --seed {seed}"
    different, named, right = (sum(row[i] for row in rows) for i in (4, 1, 2))
    lines = [
        "# Planted differences of training runs",
        "",
        f"Printed by `{command}`.",
        "The frame: trainings of the models of examples 06, 07 and 12 in torch and JAX with drawn optimizer,",
        "schedule, clipping, accumulation, processes and type, 16 updates each; run B has one difference of",
        f"{len(PLANTS)}, drawn without return. [bisect](../bisect.md) has seen 0, 1, 78 to 86, 100, 200.",
        "",
        "| | |",
        "| --- | --- |",
        f"| pairs with a difference that are called different | {different} of {pairs} |",
        f"| whose difference is named | {named} of {pairs} |",
        f"| whose first step is right | {right} of {pairs} |",
        f"| healthy pairs ({len(SEEDS)} seeds each) that are the same | {count - len(wrong)} of {count} |",
        f"| seconds for a pair, median (largest) | {statistics.median(seconds):.2f} ({max(seconds):.2f}) |",
        "",
        *(["Not named, or another step:", "", *missed, ""] if missed else []),
        *(["Healthy, and called different:", "", *wrong, ""] if wrong else []),
        "| frame | drawn | named | right step |",
        "| --- | --- | --- | --- |",
        *_counted(rows, 3),
        "",
        "| difference | drawn | named | right step |",
        "| --- | --- | --- | --- |",
        *_counted(rows, 0),
    ]
    return "\n".join(lines) + "\n"


def _counted(rows: Sequence[tuple[str, bool, bool, str, bool]], column: int) -> list[str]:
    lines = []
    for key in sorted({str(row[column]) for row in rows}):
        members = [row for row in rows if row[column] == key]
        lines.append(
            f"| {key} | {len(members)} | {sum(r[1] for r in members)} | {sum(r[2] for r in members)} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--verbose", action="store_true", help="print every pair")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    text = page(options.pairs, options.healthy, options.seed, options.verbose)
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
