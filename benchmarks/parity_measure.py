"""What comparing two large trees costs: time, and memory beside the trees.

    python benchmarks/parity_measure.py [--elements 100000000] [--leaves 10] [--json]

Two trees of float32 that are some roundings apart, with and without an oracle in float64, contiguous
and with every leaf transposed on one side. For comparison: NumPy's `max(abs(c - r))` leaf by leaf,
which is one number of the ten and makes two copies.

Memory is the highest resident size while comparing, less that before; tracemalloc counts NumPy's arrays
in a second run, because it slows the first one.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from jaxpar.parity.measuring import Kind, measure

BAR = 3.0
"""Times the largest leaf: more is too much."""

Tree = Mapping[str, np.ndarray[Any, Any]]


def trees(elements: int, leaves: int) -> tuple[Tree, Tree]:
    """Candidate and reference."""
    random = np.random.default_rng(0)
    columns = 1000
    rows = max(elements // leaves // columns, 1)
    reference = {f"leaf{i}": random.standard_normal((rows, columns), np.float32) for i in range(leaves)}
    candidate = {
        name: x * (1 + np.float32(1e-7) * random.standard_normal(x.shape, np.float32))
        for name, x in reference.items()
    }
    return candidate, reference


def resident() -> int:
    """Bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def watched(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and by how much the resident size grew at most."""
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return seconds, max(peak[0] - before, 0)


def traced(work: Callable[[], object]) -> int:
    """The peak that tracemalloc sees."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=100_000_000, help="of each tree")
    parser.add_argument("--leaves", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    c, r = trees(options.elements, options.leaves)
    largest = max(x.nbytes for x in r.values())
    elements = sum(x.size for x in r.values())
    oracle = {name: x.astype(np.float64) for name, x in r.items()}
    turned = {name: np.asfortranarray(x) for name, x in c.items()}
    cases = {
        "numpy: max(abs(c - r))": lambda: [float(np.abs(c[name] - r[name]).max()) for name in r],
        "measure": lambda: measure(c, r, Kind.WEIGHT),
        "measure, equal trees": lambda: measure(r, r, Kind.WEIGHT),
        "measure with an oracle": lambda: measure(c, r, Kind.WEIGHT, oracle=oracle),
        "measure, transposed": lambda: measure(turned, r, Kind.WEIGHT),
    }
    found = []
    for name, work in cases.items():
        seconds, grown = watched(work)
        peaks = {"resident": grown / largest, "traced": traced(work) / largest}
        found.append({"case": name, "seconds": seconds, "ns_per_element": 1e9 * seconds / elements, **peaks})
    if options.json:
        print(json.dumps({"elements": elements, "largest_leaf_bytes": largest, "cases": found}, indent=1))
        return
    print(f"{elements:,} float32 in {options.leaves} leaves of {largest / 2**20:.0f} MiB, on each side")
    print(f"{'':26} {'seconds':>8} {'ns/element':>11}   memory in largest leaves, bar {BAR:g}")
    for case in found:
        print(
            f"{case['case']:26} {case['seconds']:8.2f} {case['ns_per_element']:11.1f}"
            f"   resident {case['resident']:.2f}, traced {case['traced']:.2f}"
        )


if __name__ == "__main__":
    main()
