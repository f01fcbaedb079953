"""Compare drawn optax chains with one thing changed, and chains that are written in two ways.

    python benchmarks/loops/run_chains.py --pairs 60 --healthy 30 --seed 134 --out docs/tables/chains.md

For each pair: whether a sentence names the change, whether the batch is the one after which the chain first
differs from itself without the change, and whether the part, parameters or their average, is right.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.loops.chains import CHANGES, Chain, Change, drawn_healthy, drawn_pairs, written
from benchmarks.loops.planted import BATCHES
from benchmarks.loops.run import _short, first_of, named_by, print_page
from jaxpar import parity

Ways = tuple[str, str]


def infinite_of(*chains: Chain) -> list[int]:
    """Return the batch with infinite gradients: optax.MultiSteps makes NaN of one, for ever."""
    return [13] if any(x.skips for x in chains) and all(x.accumulate == 1 for x in chains) else []


def compared(chain: Chain, other: Chain, ways: Ways, seed: int = 0) -> parity.LoopComparison:
    loops = written(chain, ways[0]), written(other, ways[1])
    return parity.compare_loops(*loops, reference="jax", infinite=infinite_of(chain, other), seed=seed)


def is_named(result: parity.LoopComparison, change: Change) -> bool:
    return any(re.search(change.named, cause) for cause in result.causes)


def first_right(result: parity.LoopComparison, chain: Chain, other: Chain, way: str) -> bool:
    expected = first_of((written(chain, way), written(other, way)), infinite_of(chain, other))
    return min((x.batch for x in result.differences), default=0) == expected


def page(pairs: int, healthy: int, seed: int) -> str:
    rows, seconds, missed = [], [], []
    for chain, change, other, ways in drawn_pairs(seed, pairs):
        begun = time.perf_counter()
        result = compared(chain, other, ways)
        seconds.append(time.perf_counter() - begun)
        expected = "ema" if "average" in change.name else "parameters"
        part = expected == (result.differences[0].part if result.differences else "")
        named = is_named(result, change)
        right = first_right(result, chain, other, ways[1])
        rows.append((change.name, bool(result.differences), right, part, named))
        if not (named and right and part):
            missed.append(f"* {change.name} ({chain.optimizer}, {' and '.join(ways)}): {_short(result)}")
    wrong = []
    for chain, ways in drawn_healthy(seed, healthy):
        result = compared(chain, chain, ways)
        if not result.equal:
            wrong.append(f"* {chain.optimizer}, {' and '.join(ways)}: {_short(result)}")
    options = f"--pairs {pairs} --healthy {healthy} --seed {seed}"
    counts = [sum(row[i] for row in rows) for i in range(1, 5)]
    lines = [
        "# Planted differences between optax chains",
        "",
        f"Printed by `python benchmarks/loops/run_chains.py {options}`.",
        "The frame: chains of a grammar (optimizer, schedule, clipping, accumulation, decay and its mask,",
        f"scale, skipped updates, average) over {BATCHES} batches, with one change of a list of",
        f"{len(CHANGES)}. Both sides are written in drawn ways: optax's optimizers, their parts, nested",
        "containers, jaxpar's optimizers.",
        "[compare_loops](../compare_loops.md) was developed on seed 1.",
        "",
        "| | |",
        "| --- | --- |",
        f"| changed pairs that are seen | {counts[0]} of {pairs} |",
        f"| whose first batch is right | {counts[1]} of {pairs} |",
        f"| whose part is right | {counts[2]} of {pairs} |",
        f"| whose change is named | {counts[3]} of {pairs} |",
        f"| one chain in two ways that is called the same | {healthy - len(wrong)} of {healthy} |",
        f"| seconds for a pair, median (largest) | {statistics.median(seconds):.1f} ({max(seconds):.1f}) |",
        "",
        *(["Not named, or the wrong batch or part:", "", *missed, ""] if missed else []),
        *(["One chain, and called different:", "", *wrong, ""] if wrong else []),
        "| change | drawn | named |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*lines, *named_by(rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    print_page(page, __doc__, 30, 134, arguments)


if __name__ == "__main__":
    main()
