"""How the host's work grows with parameters, replicas and ranks: counts, bytes, seconds and fitted exponents.

    python benchmarks/scale/run.py [--small] [--only leaves replicas processes] [--out scale.md]

Counts and bytes do not depend on what else the machine does; seconds do, and the page has the load. An
exponent is the slope between the last two sizes, in logarithms: 1 is linear, 0 is constant.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.scale import ranks, step

SIZES = {
    "leaves": (10, 100),
    "lowered leaves": (10, 100, 1000),
    "replicas": (2, 8, 32),
    "lowered replicas": (64, 256, 1024),
    "ranks": (2, 8, 32, 125, 250, 500, 1000),
    "processes": (2, 4, 8),
    "leaves of processes": (10, 100),
}
SMALL = {
    "leaves": (4, 8),
    "lowered leaves": (4, 8),
    "replicas": (2, 4),
    "lowered replicas": (8, 16),
    "ranks": (2, 4, 8),
    "processes": (2,),
    "leaves of processes": (2,),
}
LEAVES, DEVICES = 30, 2  # where the other one varies
TIMED = {*step.SECONDS, "warm step", "trace and lower"}
"""Quantities in seconds; all others are counts or bytes, equal in every run."""
Measure = Callable[[int], dict[str, float]]


def child(leaves: int, devices: int, what: str) -> dict[str, float]:
    """Measure in a process of its own, whose number of devices is fixed."""
    command = [sys.executable, __file__, "--measure", str(leaves), str(devices), what]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


AXES: dict[str, tuple[str, str, Measure]] = {
    "leaves": (
        f"parameters, {DEVICES} virtual devices",
        "leaves",
        lambda n: child(n, DEVICES, "run") | child(n, DEVICES, "memory"),
    ),
    "lowered leaves": (
        f"parameters, {DEVICES} virtual devices, nothing compiled",
        "lowered leaves",
        lambda n: child(n, DEVICES, "lower"),
    ),
    "replicas": (f"replicas, {LEAVES} parameters", "replicas", lambda n: child(LEAVES, n, "run")),
    "lowered": (
        f"replicas, {LEAVES} parameters, nothing compiled",
        "lowered replicas",
        lambda n: child(LEAVES, n, "lower"),
    ),
    "exchange": ("ranks that exchange a text of 64 bytes, simulated", "ranks", ranks.exchanged),
    "new step": ("ranks in a step that is new to all, simulated", "ranks", ranks.new_step),
    "known step": ("ranks in a step that is known, simulated", "ranks", ranks.known_step),
    "processes": ("processes of a training of three steps", "processes", ranks.processes),
    "leaves of processes": (
        "parameters of a training of three steps in 2 processes",
        "leaves of processes",
        lambda n: ranks.processes(2, n),
    ),
}


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """Return the slope of the last two sizes in logarithms; None where nothing is counted."""
    if len(sizes) < 2 or min(values[-2:]) <= 0:
        return None
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def table(title: str, sizes: Sequence[int], rows: list[dict[str, float]]) -> list[str]:
    lines = [f"## {title}", "", "| | kind | " + " | ".join(f"{n:,}" for n in sizes) + " | exponent |"]
    lines.append("|---|---|" + "---:|" * (len(sizes) + 1))
    for name in rows[0]:
        values = [row.get(name, 0) for row in rows]
        slope = exponent(sizes, values)
        kind = "seconds" if name in TIMED else "bytes" if "bytes" in name or "memory" in name else "count"
        cells = [f"{x:.4f}" if kind == "seconds" else f"{x:,.0f}" for x in values]
        shown = "" if slope is None else f"{slope:.2f}"
        lines.append(f"| {name} | {kind} | {' | '.join(cells)} | {shown} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="two or three small sizes")
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--out", type=Path, help="write the page there")
    parser.add_argument("--measure", nargs=3, metavar=("LEAVES", "DEVICES", "WHAT"), help="in this process")
    options = parser.parse_args()
    if options.measure:
        leaves, devices, what = options.measure
        print(json.dumps(step.measured(int(leaves), int(devices), what)))
        return
    page = []
    for axis in options.only:
        title, sizes_name, measure = AXES[axis]
        sizes = (SMALL if options.small else SIZES)[sizes_name]
        print(title, *sizes, flush=True)
        page += table(title, sizes, [measure(n) for n in sizes])
    page += [f"Load of the machine while measuring: {os.getloadavg()[2]:.1f} of {os.cpu_count()} cores.", ""]
    if options.out:
        options.out.write_text("\n".join(page))


if __name__ == "__main__":
    main()
